"""Control characters from files do not reach the terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from test_cli import run
from vlbm.terminal import SafeConsole, show_controls

EVIL = "obs_0\x1b]0;owned\x07"


def test_control_characters_are_shown_as_pictures():
    assert show_controls("a\x1b[2J\r\x07\x7f\x9b\tb\n") == "a␛[2J␍␇␡\N{REPLACEMENT CHARACTER}\tb\n"


def test_a_console_keeps_its_own_colours_and_no_other_control():
    console = SafeConsole(file=io.StringIO(), force_terminal=True, color_system="standard", width=60)
    table = Table("name")
    table.add_row(Text(EVIL, style="red"))
    console.print(table)
    console.print(EVIL, style="red", markup=False)
    shown = console.file.getvalue()
    assert "\x1b[31m" in shown
    assert "\x1b]" not in shown
    assert "\x07" not in shown
    assert shown.count("␛") == 2


@pytest.mark.parametrize("columns", [[], ["--column", "reward=nope"]])
def test_names_of_columns_in_tables_and_errors_are_harmless(tmp_path, monkeypatch, capsys, columns):
    monkeypatch.chdir(tmp_path)
    rows = [{EVIL: 0.1 * t, "action": t % 2, "reward": 1.0 * t, "episode": t // 3} for t in range(12)]
    Path("logs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("inspect", "logs.jsonl", "--column", f"observation={EVIL}", *columns)
    shown = capsys.readouterr()
    assert "␛]0;" in shown.out + shown.err
    assert "\x1b]" not in shown.out + shown.err
