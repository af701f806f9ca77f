"""merge_texts(): what is said about many policies in the same words is said once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")


def merge_texts(texts: Iterable[tuple[str, str]]) -> list[str]:
    """Texts about policies, one for all policies where they differ only in numbers."""
    about: dict[str, list[tuple[str, str]]] = {}
    for policy, text in texts:
        about.setdefault(NUMBER.sub("0", text), []).append((policy, text))
    return [
        f"{_join_names(list(dict.fromkeys(policy for policy, _ in found)))}: "
        f"{_merge_numbers([text for _, text in found])}"
        for found in about.values()
    ]


def _merge_numbers(texts: Sequence[str]) -> str:
    """One text for many that differ only in numbers, with the range of each number."""
    columns = zip(*(NUMBER.findall(text) for text in texts), strict=True)
    ranges = []
    for numbers in columns:
        ordered = sorted(numbers, key=lambda number: float(number.replace(",", "")))
        ends = ordered[0], ordered[-1]
        ranges.append(ends[0] if ends[0] == ends[1] else " to ".join(ends))
    following = iter(ranges)
    return NUMBER.sub(lambda _: next(following), texts[0])


def _join_names(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
