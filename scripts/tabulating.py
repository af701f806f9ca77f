"""What all tables of the documents share: stored rows, cells, and the marks that tables stand between."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vlbm.storage import write_text

ROOT = Path(__file__).resolve().parents[1]


def read(name: str) -> list[dict[str, Any]]:
    path = ROOT / "docs" / "results" / name
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    )


def grouped(rows: list[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    return dict(groups)


def spread(rows: list[dict[str, Any]], name: str, digits: int) -> str:
    if any(row[name] is None for row in rows):  # estimates that the truth is not of
        return ""
    values = np.array([row[name] for row in rows])
    error = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{error}"


def scores(group: list[dict[str, Any]]) -> list[str]:
    return [spread(group, "rank", 2), spread(group, "regret", 2), spread(group, "mae", 0)]


def markdown(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def replace_block(path: Path, name: str, text: str) -> None:
    """Put `text` between the marks `<!-- name:begin -->` and `<!-- name:end -->`."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    old = path.read_text(encoding="utf-8")
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(old):
        raise SystemExit(f"{path}: the marks {begin} and {end} are missing")
    write_text(path, pattern.sub(lambda _: f"{begin}\n{text}\n{end}", old))
