"""Progress: one bar for every phase, in terminals and notebooks."""

from __future__ import annotations

import io
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console

import vlbm
from systems import linear_logs
from vlbm.progress import TerminalProgress, as_progress, silent


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=140, force_jupyter=False)


def lines(console: Console) -> list[str]:
    return [line for line in console.file.getvalue().splitlines() if line.strip()]


def work(progress, steps: int, *, total: int | None = None, **terms: float) -> None:
    with progress.task(total=total or steps) as report:
        for step in range(1, steps + 1):
            report(step, dict(terms))


def test_true_shows_bars_and_false_none():
    assert isinstance(as_progress(True), TerminalProgress)
    assert as_progress(False) is silent
    given = TerminalProgress()
    assert as_progress(given) is given


def test_rounds_of_one_phase_are_one_bar_and_validations_no_flood(console):
    with TerminalProgress("outer", console).shared_display(parts=3) as progress:
        for number in range(3):
            work(progress.with_title("fitting Q"), 10, loss=1.0 / (number + 1), validation=2.5)
    (line,) = lines(console)
    assert "fitting Q" in line
    assert "30/30" in line
    assert "loss 0.333  validation 2.5" in line


def test_a_bar_counts_the_parts_that_are_still_to_come(console):
    with TerminalProgress("imagining", console).shared_display(parts=5) as progress:
        work(progress, 10)
        (phase,) = progress._bars.phases.values()
        assert (sum(phase.done), phase.total) == (10, 50)
        work(progress, 4, total=10)  # ended early: nothing of it is left to do
        assert (sum(phase.done), phase.total) == (14, 14 + 3 * 4)
    assert "14/14" in lines(console)[0]


def test_phases_inside_a_phase_share_its_display(console):
    with (
        TerminalProgress("folds", console).shared_display(parts=2) as outer,
        outer.shared_display(parts=3) as inner,
    ):
        work(inner.with_title("a"), 2)
        assert inner._bars is outer._bars
        assert inner._bars.phases["a"].total == 12
        work(inner.with_title("b"), 3)
    assert [line.split()[0] for line in lines(console)] == ["a", "b"]


def test_phases_of_an_owner_have_its_name_before_theirs(console):
    with TerminalProgress("evaluating", console).of("fqe").shared_display() as progress:
        work(progress, 1)
        work(progress.with_title("fitting Q"), 1)
    assert [" ".join(line.split()[:3]) for line in lines(console)] == [
        "fqe: evaluating ━━━━━━━━━━━━",
        "fqe: fitting Q",
    ]


def test_a_display_without_bars_shows_nothing(console):
    with TerminalProgress("evaluating", console).shared_display():
        pass
    assert console.file.getvalue() == ""


def test_tasks_of_several_threads_are_counted_together(console):
    with (
        TerminalProgress("training", console).shared_display(parts=8) as progress,
        ThreadPoolExecutor(4) as pool,
    ):
        list(pool.map(lambda _: work(progress, 50), range(8)))
    (line,) = lines(console)
    assert "400/400" in line


def test_a_notebook_has_one_text_that_is_replaced(monkeypatch):
    shown = []

    class Handle:
        def update(self, content, raw):
            shown.append(content["text/plain"])

    display = pytest.importorskip("IPython.display", reason="IPython is not installed")
    monkeypatch.setattr(display, "display", lambda content, raw, display_id: Handle())
    notebook = Console(file=io.StringIO(), force_jupyter=True)
    with TerminalProgress("imagining", notebook).shared_display(parts=2) as progress:
        work(progress, 10)
        work(progress, 10)
    assert 1 <= len(shown) < 20
    assert re.search(r"imagining .* 20/20 ", shown[-1])


def test_evaluating_from_python_takes_true(capsys):
    logs = linear_logs()
    policies = {"still": lambda seen: 0 * seen[:, : logs.action_size]}
    settings = vlbm.make_estimator("ff", settings=["units=2", "members=1", "steps=2", "validate_every=2"])
    evaluator = settings.fit(logs, progress=True)
    evaluator.evaluate(policies, episodes=2, horizon=3, progress=True)
    assert "training" in capsys.readouterr().err


def test_bars_that_begin_in_passing_disappear_and_lines_stay(console):
    with (
        TerminalProgress("", console).shared_display() as progress,
        progress.task(total=2, title="cells") as report,
    ):
        for cell in (1, 2):
            with progress.passing() as shown:
                work(shown.with_title("training"), 3)
            assert list(progress._bars.phases) == ["cells"]
            report(cell, None)
            progress.say(f"cell {cell} has finished\x1b[31m")
    assert lines(console)[:2] == ["cell 1 has finished␛[31m", "cell 2 has finished␛[31m"]
    assert "2/2" in lines(console)[2]
    assert not any("training" in line for line in lines(console))


def test_without_an_open_display_bars_stay(console):
    with TerminalProgress("", console).passing() as shown:
        work(shown.with_title("training"), 3)
    assert "3/3" in lines(console)[0]
