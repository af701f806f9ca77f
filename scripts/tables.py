"""Write the tables in README.md and docs/ from the stored results in docs/results/."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from accuracy import WORLDS
from results_tables import gap_table, paper_table, rsa_table, search_table
from study_tables import accuracy_table, changes_table, imagination_table
from tabulating import ROOT, grouped, markdown, read, replace_block, scores
from vlbm.results.metrics import absolute_error
from vlbm.suites.gym import ENVIRONMENTS, read_facts, read_truth

APPENDIX = ROOT / "docs" / "appendix"


def main() -> None:
    study, accuracy = APPENDIX / "study.md", read("accuracy.jsonl")
    worlds = [row for row in accuracy if row["method"] in WORLDS]
    replace_block(study, "accuracy", accuracy_table(worlds, ("before", "after")))
    replace_block(study, "changes", changes_table(read("changes.jsonl")))
    replace_block(ROOT / "README.md", "accuracy", accuracy_table(accuracy, ("after",)))
    replace_block(study, "imagination", imagination_table(read("imagination.jsonl")))
    fqe = [row for row in accuracy if row["method"] == "fqe"]
    labels = ("textbook", "after")
    replace_block(APPENDIX / "fqe.md", "fqe", accuracy_table(fqe, labels))
    replace_block(APPENDIX / "scores.md", "methods", methods_table(read("methods.jsonl")))
    replace_block(ROOT / "docs" / "benchmark.md", "returns", returns_table())
    replace_block(ROOT / "docs" / "benchmark.md", "spread", spread_table())
    results, search = ROOT / "docs" / "results.md", read("search.jsonl")
    replace_block(results, "paper", paper_table())
    if search:
        replace_block(results, "search", search_table(search))
        replace_block(results, "gap", gap_table(search))
    replace_block(results, "rsa", rsa_table(read("rsa.jsonl")))
    measured = json.loads((ROOT / "docs" / "results" / "benchmarks.json").read_text(encoding="utf-8"))
    replace_block(ROOT / "docs" / "performance.md", "benchmarks", benchmarks_table(measured))


def methods_table(rows: list[dict[str, Any]]) -> str:
    """Every method on every task: scores with their spread over seeds, and the time of one seed."""

    def average(values: Sequence[float]) -> str:
        return f"{np.mean(values):.0f}"

    def doubted(group: list[dict[str, Any]]) -> str:
        return average([row["doubted"] for row in group])

    def taken(group: list[dict[str, Any]]) -> str:
        # In brackets where the processor's time is not known: the clock counts what else the machine did.
        known = [row["processor"] for row in group if row["processor"] is not None]
        return average(known) if known else f"({average([row['seconds'] for row in group])})"

    lines = []
    for (task,), of_task in grouped(rows, "task").items():
        for (method,), group in grouped(of_task, "method").items():
            lines.append([task, method, len(group), *scores(group), doubted(group), taken(group)])
        true = np.array(of_task[0]["truth"])
        error = absolute_error(np.full(len(true), true.mean()), true)
        lines.append([task, "*mean of the truth for all*", "", "0.00", "", f"{error:.0f}", "", ""])
    return markdown(
        ["task", "method", "seeds", "rank correlation", "regret@1", "MAE", "doubted", "seconds"], lines
    )


def returns_table() -> str:
    """True returns of the gym suite's policies: discounted, by mean actions, with standard errors."""
    facts = {name: read_facts(name) for name in ENVIRONMENTS}
    policies = list(facts[ENVIRONMENTS[0]]["policies"])

    def cell(environment: str, policy: str) -> str:
        true = facts[environment]["policies"][policy]["mean_actions"]["discounted"]
        return f"{true['value']:.1f} ± {true['standard_error']:.1f}"

    return markdown(
        ["policy", *ENVIRONMENTS],
        [[policy, *(cell(environment, policy) for environment in ENVIRONMENTS)] for policy in policies],
    )


def spread_table() -> str:
    """How evenly the true returns lie, and what they are undiscounted."""
    rows = []
    for environment in ENVIRONMENTS:
        values = np.sort(list(read_truth(environment).values()))
        gap = np.diff(values).max() / np.ptp(values)
        whole = list(read_truth(environment, kind="undiscounted").values())
        rows.append([environment, f"{values[0]:.0f} to {values[-1]:.0f}", f"{100 * gap:.0f} %",
                     f"{min(whole):.0f} to {max(whole):.0f}"])  # fmt: skip
    return markdown(["environment", "discounted (0.995)", "largest gap, of the range", "undiscounted"], rows)


def benchmarks_table(stored: dict[str, Any]) -> str:
    """What `make bench` measured last, beside what it must reach."""
    met = {True: "yes", False: "**no**", None: ""}
    return markdown(
        ["what", "cores", "measured", "must be", "met", "on"],
        [
            [
                row["name"],
                row["cores"],
                row["why_not"] or f"{row['value']:.3g} {row['unit']}".strip(),
                row["must"],
                met[row["met"]],
                row["when"][:10],
            ]
            for row in stored["rows"]
        ],
    )


if __name__ == "__main__":
    main()
