"""vlbm benchmark on the command line."""

from __future__ import annotations

import pytest

from made_benchmarks import made_failure, made_row, write_rows
from test_cli import run


def test_report_writes_tables_and_a_page_and_prints_the_means(tmp_path, capsys):
    rows = [made_row("dope/hopper-medium", seed=seed, rank=rank) for seed, rank in enumerate((0.5, 0.7))]
    write_rows(tmp_path, [*rows, made_failure("dope/hopper-medium", "fqe", 0, "no luck")])
    assert run("benchmark", "report", tmp_path, "--formats", "md, csv", "--quiet") == 0
    printed = capsys.readouterr().out
    assert "0.60 ± 0.14" in printed
    assert "published" in printed
    assert "failed" in printed
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"index.html", "tables"}
    assert (tmp_path / "report" / "tables" / "table-1-rank-correlation-gym-mujoco.md").is_file()


def test_no_number_is_cut_off_in_a_narrow_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    rows = [
        made_row("dope/hopper-medium", "vlm-rsa-ensemble", seed=seed, error=5000.0 + 900 * seed)
        for seed in (0, 1)
    ]
    write_rows(tmp_path, [*rows, made_row("dope/ant-medium")])
    assert run("benchmark", "report", tmp_path, "--formats", "csv", "--quiet") == 0
    printed = capsys.readouterr().out
    assert "\N{HORIZONTAL ELLIPSIS}" not in printed
    assert "5450 ± 636" in printed


def test_the_folder_can_be_chosen(tmp_path):
    write_rows(tmp_path, [made_row()])
    assert (
        run("benchmark", "report", tmp_path, "--output", tmp_path / "here", "--formats", "csv", "--quiet")
        == 0
    )
    assert (tmp_path / "here" / "index.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere: holds no benchmark"),
        (["results", "--formats", "gif"], "format 'gif': must be one of"),
        (["results", "--formats", ","], "--formats: none were given"),
        (["results", "--output", "file"], "file: is a file; give the name of a directory"),
    ],
)
def test_what_cannot_be_reported_is_one_clear_error(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "results", [made_row()])
    (tmp_path / "file").write_text("")
    assert run("benchmark", "report", *arguments) == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1
