"""Progress of long work: silent unless asked for, then a live bar for every phase."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

Report = Callable[[int, dict[str, float] | None], None]

SECONDS = 0.25  # between two pictures in a notebook
MEMORY = (
    86_400.0  # seconds over which speed is measured: a step may be a cell of a benchmark, which takes hours
)


class Progress:
    """Reports nothing; the base class."""

    @contextmanager
    def task(self, *, total: int, done: int = 0, title: str = "") -> Iterator[Report]:
        yield lambda done, terms: None

    def with_title(self, title: str) -> Progress:
        """The same with another title."""
        return self

    def of(self, owner: str) -> Progress:
        """The same with a name before every title, such as that of a method."""
        return self

    @contextmanager
    def shared_display(self, parts: int = 1) -> Iterator[Progress]:
        """A progress for tasks that share one display; those of one title, at most `parts`, share one bar."""
        yield self

    def say(self, text: str) -> None:
        """A line that stays, above the bars."""

    @contextmanager
    def passing(self) -> Iterator[Progress]:
        """Where a display is open, bars of tasks that begin within disappear at the end of the context."""
        yield self


silent = Progress()


def as_progress(progress: Progress | bool) -> Progress:
    """True shows bars, False none."""
    if isinstance(progress, bool):
        return TerminalProgress() if progress else silent
    return progress


class TerminalProgress(Progress):
    """Bars with throughput, time left and the latest terms, on standard error or in a notebook."""

    def __init__(
        self, title: str = "", console: Any = None, bars: Bars | None = None, parts: int = 1, owner: str = ""
    ):
        from rich.console import Console

        self.title = title
        self.console = console or Console(stderr=True)
        self.owner = owner
        self._bars = bars
        self._parts = parts

    def with_title(self, title: str) -> Progress:
        return TerminalProgress(title, self.console, self._bars, self._parts, self.owner)

    def of(self, owner: str) -> Progress:
        return TerminalProgress(self.title, self.console, self._bars, self._parts, owner)

    @contextmanager
    def shared_display(self, parts: int = 1) -> Iterator[Progress]:
        with self._display() as bars:
            yield TerminalProgress(self.title, self.console, bars, self._parts * parts, self.owner)

    def say(self, text: str) -> None:
        from vlbm.terminal import show_controls

        self.console.print(show_controls(text), highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def passing(self) -> Iterator[Progress]:
        known = () if self._bars is None else tuple(self._bars.phases)
        try:
            yield self
        finally:
            if self._bars is not None:
                self._bars.forget(known)

    @contextmanager
    def task(self, *, total: int, done: int = 0, title: str = "") -> Iterator[Report]:
        with self._display() as bars:
            named = ": ".join(part for part in (self.owner, title or self.title) if part)
            phase, number = bars.begin(named, total, done, self._parts)
            yield lambda done, terms: bars.report(phase, number, done, terms or {})
            bars.end(phase, number)

    def _display(self) -> Any:
        """The display that an outer task has opened, or a new one."""
        return nullcontext(self._bars) if self._bars is not None else _open_bars(self.console)


@dataclass
class Phase:
    """Tasks of one title: one bar counts all of their steps."""

    bar: Any
    parts: int  # that are expected
    totals: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    terms: dict[str, float] = field(default_factory=dict)  # the latest

    @property
    def total(self) -> int:
        """Those to come are taken to be as long as the latest."""
        return sum(self.totals) + max(self.parts - len(self.totals), 0) * self.totals[-1]


class Bars:
    """The bars of one display, by title; tasks report from several threads."""

    def __init__(self, bars: Any, draw: Callable[[], None]):
        self.bars = bars
        self.draw = draw
        self.phases: dict[str, Phase] = {}
        self.lock = threading.RLock()

    def begin(self, title: str, total: int, done: int, parts: int) -> tuple[Phase, int]:
        with self.lock:
            self.bars.start()  # not before: a display without bars is an empty line
            if title not in self.phases:
                bar = self.bars.add_task(title, total=total, completed=done, terms="")
                self.phases[title] = Phase(bar, parts)
            phase = self.phases[title]
            phase.totals.append(total)
            phase.done.append(done)
            self._update(phase)
            return phase, len(phase.totals) - 1

    def report(self, phase: Phase, number: int, done: int, terms: dict[str, float]) -> None:
        with self.lock:
            phase.done[number] = done
            phase.terms |= {name: value for name, value in terms.items() if name in ("loss", "validation")}
            self._update(phase)

    def end(self, phase: Phase, number: int) -> None:
        """What ends early was as long as it got."""
        with self.lock:
            phase.totals[number] = phase.done[number]
            self._update(phase)

    def forget(self, known: Collection[str]) -> None:
        """Remove all bars but those of known titles."""
        with self.lock:
            for title in [title for title in self.phases if title not in known]:
                self.bars.remove_task(self.phases.pop(title).bar)
            self.draw()

    def finish(self) -> None:
        """Parts that were expected and never came are expected no longer."""
        with self.lock:
            for phase in self.phases.values():
                phase.parts = 0
                self._update(phase)

    def _update(self, phase: Phase) -> None:
        terms = "  ".join(f"{name} {value:.3g}" for name, value in phase.terms.items())
        self.bars.update(phase.bar, completed=sum(phase.done), total=phase.total, terms=terms)
        self.draw()


@contextmanager
def _open_bars(console: Any) -> Iterator[Bars]:
    notebook = console.is_jupyter
    columns = _make_columns(console, disable=notebook)
    picture = NotebookPicture(columns) if notebook else None
    bars = Bars(columns, picture.draw if picture else lambda: None)
    try:
        yield bars
    finally:
        bars.finish()
        if columns.live.is_started:
            columns.stop()
        if picture is not None:
            picture.draw(at_once=True)


class NotebookPicture:
    """Bars as text that is replaced in its place: rich itself needs ipywidgets for that."""

    def __init__(self, columns: Any):
        from IPython.display import display

        self.columns = columns
        self.handle = display({"text/plain": ""}, raw=True, display_id=True)
        self.drawn = 0.0

    def draw(self, at_once: bool = False) -> None:
        from rich.console import Console

        if not at_once and time.monotonic() - self.drawn < SECONDS:
            return
        self.drawn = time.monotonic()
        buffer = io.StringIO()
        console = Console(file=buffer, width=110, color_system=None, force_jupyter=False)
        console.print(self.columns.get_renderable())
        self.handle.update({"text/plain": buffer.getvalue().rstrip()}, raw=True)


def _make_columns(console: Any, *, disable: bool) -> Any:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        TextColumn,
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
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        Throughput(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[terms]}", style="dim"),
    )
    return Progress(
        *columns,
        console=console,
        refresh_per_second=4,
        disable=disable,
        speed_estimate_period=MEMORY,
    )
