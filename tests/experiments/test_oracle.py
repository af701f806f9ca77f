"""The gap to an oracle: the search chooses by its score, and only the oracle by the truth."""

from __future__ import annotations

import math

from vlbm.experiments.oracle import Judged, measure_gap

NAN = float("nan")


def judged(name: str, steps: int, score: float, rank: float, error: float) -> Judged:
    return Judged({"name": name}, steps, score, rank, 0.0, error)


def test_the_search_chooses_by_its_score_and_the_oracle_by_the_truth():
    rows = [
        judged("promising", 10, 0.1, 0.2, 30.0),
        judged("lucky", 10, 0.9, 0.8, 12.0),
        judged("chosen", 90, 0.4, 0.5, 40.0),
        judged("right", 90, 0.8, 0.9, 15.0),
        judged("diverged", 90, math.inf, NAN, NAN),
    ]
    gap = measure_gap(rows)
    assert gap.chosen.settings == {"name": "chosen"}
    assert gap.by_rank.settings == {"name": "right"}
    assert gap.by_error.settings == {"name": "lucky"}
    assert [name for name, _ in gap.rows()] == ["truth-free", "oracle, by rank", "oracle, by error"]
