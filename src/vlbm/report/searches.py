"""A search over settings as a table for the terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from vlbm.experiments.select import Selection

SHOWN = 20  # candidates; the file of the search has all of them


def print_search(selection: Selection, console: Console) -> None:
    """Candidates by how long they were trained and how well they did, the chosen one in bold."""
    from rich import box
    from rich.table import Table

    from vlbm.experiments.grids import describe_value

    # Of the same settings only the longest training.
    longest = {str(candidate.settings): candidate for candidate in selection.candidates}
    ranked = sorted(longest.values(), key=lambda candidate: (-candidate.steps, candidate.score))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ranked[0].settings:
        table.add_column(name.replace("_", "\n"), justify="right")
    for name in ("steps", f"{selection.score}\n(lower is better)", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for candidate in ranked[:SHOWN]:
        score = f"{candidate.score:.4g}" if math.isfinite(candidate.score) else "diverged"
        table.add_row(
            *map(describe_value, candidate.settings.values()),
            f"{candidate.steps:,}",
            score,
            f"{candidate.seconds:.0f}",
            style="bold" if candidate == selection.best else None,
        )
    console.print(table)
    if len(ranked) > SHOWN:
        console.print(f"{len(ranked) - SHOWN} more candidates did worse", style="dim", highlight=False)
