"""Progress of long work: silent in libraries, a live line in terminals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

Report = Callable[[int, dict[str, float] | None], None]


class Progress:
    """Reports nothing; the base class."""

    @contextmanager
    def task(self, *, total: int, done: int = 0, title: str = "") -> Iterator[Report]:
        yield lambda done, terms: None

    def with_title(self, title: str) -> Progress:
        """The same with another title."""
        return self

    @contextmanager
    def shared_display(self) -> Iterator[Progress]:
        """A progress for concurrent tasks, which share one display."""
        yield self


class TerminalProgress(Progress):
    """A bar with throughput, time left and the latest terms, drawn by rich on standard error."""

    def __init__(self, title: str = "", console: Any = None, bars: Any = None):
        from rich.console import Console

        self.title = title
        self.console = console or Console(stderr=True)
        self._bars = bars  # shared by concurrent tasks

    def with_title(self, title: str) -> Progress:
        return TerminalProgress(title, self.console, self._bars)

    @contextmanager
    def shared_display(self) -> Iterator[Progress]:
        with _new_bars(self.console) as bars:
            yield TerminalProgress(self.title, self.console, bars)

    @contextmanager
    def task(self, *, total: int, done: int = 0, title: str = "") -> Iterator[Report]:
        title = title or self.title
        with _new_bars(self.console) if self._bars is None else nullcontext(self._bars) as bars:
            task = bars.add_task(title, total=total, completed=done, loss="")

            def report(done: int, terms: dict[str, float] | None) -> None:
                terms = terms or {}
                loss: dict[str, Any] = {"loss": f"loss {terms['loss']:.3f}"} if "loss" in terms else {}
                bars.update(task, completed=done, **loss)
                if "validation" in terms:
                    # A line for every validation, so that the learning curve can be read afterwards.
                    first = {name: terms[name] for name in ("validation", "loss") if name in terms}
                    shown = {name: value for name, value in (first | terms).items() if value}
                    text = "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
                    of = "" if self._bars is None else f"{title}, "
                    bars.console.print(
                        f"{of}step {done}: {text}",
                        style="dim",
                        highlight=False,
                        no_wrap=True,
                        overflow="ellipsis",
                    )

            yield report


def _new_bars(console: Any) -> Any:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Throughput(ProgressColumn):
        def render(self, task: Any) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.1f}/s")

    columns = (
        SpinnerColumn(),
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        Throughput(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}", style="dim"),
    )
    return Progress(*columns, console=console, refresh_per_second=4)


silent = Progress()
