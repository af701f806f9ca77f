"""A benchmark's overview as a table for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlbm.experiments.table_files import mark, marks, plain_cell
from vlbm.experiments.tables import PUBLISHED, Cell, ScoreTable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def print_overview(table: ScoreTable, console: Console) -> None:
    """Methods by metrics, the best in bold, the paper's in grey."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    (block,) = table.blocks
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    shown.add_column(table.metric.lower(), overflow="fold")
    # A column of zeros, such as failures, would only take room.
    kept = [
        place
        for place in range(len(block.columns))
        if any(cell.mean or cell.notes for cell in (line.cells[place] for line in block.lines))
    ]
    for _, heading in (block.columns[place] for place in kept):
        # In a narrow terminal names are folded, numbers never.
        shown.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
    above = None
    for line in block.lines:
        label = f"  {PUBLISHED}" if line.published and line.method == above else line.label
        shown.add_row(
            Text(label),
            *(_show_cell(line.cells[place]) for place in kept),
            style="dim" if line.published else "",
        )
        above = line.method
    console.print(table.title, style="bold", highlight=False, markup=False)
    console.print(shown)
    for number, note in enumerate(table.notes):
        console.print(f"{mark(number)}: {note}", style="dim", highlight=False, markup=False)


def _show_cell(cell: Cell) -> Text:
    from rich.text import Text

    text = Text(plain_cell(cell), style="bold" if cell.best else "")
    return text.append(f" {marks(cell)}", style="dim") if cell.notes else text
