"""How a benchmark tells what it found: progress on standard error, figures as the last line of its output."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def tell(figures: dict[str, Any]) -> None:
    """Numbers by name; a text instead of a number says why there is none."""
    print(json.dumps(figures), flush=True)


def tell_rows(rows: list[dict[str, Any]], path: Path | None) -> None:
    """Figures with goals of their own, a line each, and all of them as JSON where a file is given."""
    for row in rows:
        print(f"{row['name']}: {row['value']:.2f} {row['unit']} ({row['detail']}; target {row['target']})")
    if path:
        path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def told(output: str) -> dict[str, Any]:
    """The figures in what a benchmark printed."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    raise ValueError("it told no figures")


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def threads() -> int:
    """As many threads for PyTorch as vlbm has cores."""
    import torch

    torch.set_num_threads(cores())
    return torch.get_num_threads()
