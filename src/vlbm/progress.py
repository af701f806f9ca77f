"""Progress of long work: silent in libraries, a live line in terminals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Report = Callable[[int, dict[str, float] | None], None]


class Progress:
    """Says nothing; the base of those that do."""

    @contextmanager
    def task(self, *, total: int, done: int = 0, title: str = "") -> Iterator[Report]:
        yield lambda done, terms: None

    def titled(self, title: str) -> Progress:
        """The same, with a heading for the next piece of work."""
        return self


class TerminalProgress(Progress):
    """A bar with throughput, time left and the latest terms, drawn by rich on standard error."""

    def __init__(self, title: str = "", console: Any = None):
        from rich.console import Console

        self.title = title
        self.console = console or Console(stderr=True)

    def titled(self, title: str) -> Progress:
        return TerminalProgress(title, self.console)

    @contextmanager
    def task(self, *, total: int, done: int = 0, title: str = "") -> Iterator[Report]:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            SpinnerColumn,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bars

        columns = (
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TaskProgressColumn(text_format="", show_speed=True),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[terms]}", style="dim"),
        )
        with Bars(*columns, console=self.console, refresh_per_second=4) as bars:
            task = bars.add_task(title or self.title, total=total, completed=done, terms="")

            shown = {"validation": float("nan")}

            def report(done: int, terms: dict[str, float] | None) -> None:
                if terms is not None:
                    shown.update(terms)  # the last validation stays in view between two of them
                    text = "  ".join(f"{name} {value:.3g}" for name, value in shown.items() if value)
                    bars.update(task, completed=done, terms=text)
                else:
                    bars.update(task, completed=done)

            yield report


silent = Progress()
