"""Parts that pages are made of: sections of prose, charts, tables and downloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup


@dataclass(frozen=True)
class Prose:
    """Paragraphs of text."""

    kind: ClassVar[str] = "prose"
    paragraphs: tuple[str, ...]
    note: bool = False  # smaller and quieter


@dataclass(frozen=True)
class Bullets:
    """Short statements, each with a mark that says what it means: sound, caution, doubtful."""

    kind: ClassVar[str] = "bullets"
    items: tuple[tuple[str, str], ...]  # mark and text


@dataclass(frozen=True)
class Table:
    """Text in rows; all columns but the first are numbers."""

    kind: ClassVar[str] = "table"
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    # How strongly each cell beside the first is shaded, from -1 to 1; None shades nothing.
    shades: tuple[tuple[float, ...], ...] | None = None


@dataclass(frozen=True)
class Chart:
    """A picture, and its data as a table (for screen readers, for example)."""

    kind: ClassVar[str] = "chart"
    title: str
    picture: Markup
    table: Table
    caption: str = ""
    legend: tuple[tuple[str, str], ...] = ()  # style and label
    option: str | None = None  # its name in a gallery's chooser
    wide: bool = False  # takes the whole width of the page


@dataclass(frozen=True)
class Gallery:
    """Charts side by side; with a chooser, only those that the reader wants, at first the first few."""

    kind: ClassVar[str] = "gallery"
    charts: tuple[Chart, ...]
    chooser: str | None = None
    shown: int = 3


@dataclass(frozen=True)
class Picture:
    """An image that the page carries with it, as wide as the page has room."""

    kind: ClassVar[str] = "picture"
    title: str
    source: str  # a data URL
    caption: str


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    kind: ClassVar[str] = "facts"
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Code:
    """Commands or settings, as they are typed."""

    kind: ClassVar[str] = "code"
    text: str
    label: str
    opened: bool = True


@dataclass(frozen=True)
class Download:
    """A file that the page carries with it."""

    name: str
    media: str  # text/csv, application/json
    text: str


@dataclass(frozen=True)
class Downloads:
    """Buttons for files."""

    kind: ClassVar[str] = "downloads"
    files: tuple[Download, ...]


@dataclass(frozen=True)
class Ranking:
    """The table of policies: sortable, every row opens."""

    kind: ClassVar[str] = "ranking"
    columns: tuple[Column, ...]
    rows: tuple[RankedRow, ...]
    caption: str


@dataclass(frozen=True)
class Column:
    """A column of the ranking."""

    key: str
    heading: str
    explanation: str
    descending: bool = True  # which way a first click sorts
    ends: tuple[str, str] | None = None  # of the scale that its pictures share


@dataclass(frozen=True)
class Cell:
    """A number as it is shown and as it is sorted by; `picture` stands instead of the text."""

    text: str
    order: float | str
    picture: Markup | None = None
    mark: str | None = None  # sound, caution or doubtful


@dataclass(frozen=True)
class RankedRow:
    """One policy, and what a click shows of it."""

    name: str
    cells: tuple[Cell, ...]
    blocks: tuple[Block, ...]


Block = Prose | Bullets | Table | Chart | Gallery | Picture | Facts | Code | Downloads | Ranking


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    name: str  # for links
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Page:
    """Everything that one file shows."""

    title: str
    eyebrow: str  # the line above the title
    answer: tuple[Markup | str, ...]  # the answer in a sentence or two
    sections: tuple[Section, ...]
    warnings: tuple[str, ...] = ()
    estimated: str = ""  # what the numbers are


def drop_empty(sections: Sequence[Section | None]) -> tuple[Section, ...]:
    """The sections that have blocks."""
    return tuple(section for section in sections if section is not None and section.blocks)
