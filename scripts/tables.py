"""Write the tables in README.md and docs/ from the stored results in docs/results/."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vlbm.metrics import absolute_error, rank_correlation, regret
from vlbm.storage import write_text
from vlbm.suites.gym import ENVIRONMENTS, read_facts, truth

ROOT = Path(__file__).resolve().parents[1]
NAMES = {
    "vlm": "VLM",
    "vlm-rsa": "VLM+RSA",
    "vlm-rsa-mse": "VLM+RSA(MSE)",
    "vlm-rsa-ensemble": "VLM+RSA ensemble",
    "vlbm": "VLBM",
    "average": "VLBM, averaged over its seeds",
}


def main() -> None:
    ablation = [row for row in read("ablation.jsonl") if not row["imagine"]]
    averages = [
        averaged(group)
        for (_, method), group in grouped(ablation, "task", "method").items()
        if method == "vlbm"
    ]
    replace_block(ROOT / "docs" / "study.md", "ablation", ablation_table(ablation + averages))
    replace_block(ROOT / "docs" / "study.md", "settings", settings_table(read("settings.jsonl")))
    replace_block(ROOT / "docs" / "study.md", "branches", settings_table(read("branches.jsonl")))
    replace_block(ROOT / "docs" / "study.md", "behaviour", behaviour_table(read("behaviour.jsonl")))
    replace_block(ROOT / "docs" / "study.md", "heldback", held_back_table(read("heldback.jsonl")))
    replace_block(ROOT / "docs" / "study.md", "imagination", imagination_table(read("imagination.jsonl")))
    replace_block(ROOT / "docs" / "critics.md", "critics", critics_table(read("critics.jsonl")))
    replace_block(ROOT / "docs" / "ratios.md", "ratios", ratios_table(read("ratios.jsonl")))
    replace_block(ROOT / "docs" / "benchmark.md", "methods", methods_table(read("methods.jsonl")))
    replace_block(ROOT / "docs" / "benchmark.md", "returns", returns_table())
    replace_block(ROOT / "docs" / "benchmark.md", "spread", spread_table())
    replace_block(ROOT / "README.md", "study", default_table(read("default.jsonl") + averages))


def averaged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What `models=N` gives: the mean of the estimates of N models from different seeds."""
    estimated = np.mean([row["values"] for row in rows], axis=0)
    true = np.array(rows[0]["truth"])
    return {
        **rows[0],
        "method": "average",
        "models": len(rows),
        "rank": rank_correlation(estimated, true),
        "regret": regret(estimated, true),
        "mae": absolute_error(estimated, true),
        "validation": float(np.mean([row["validation"] for row in rows])),
        "seconds": {"fit": sum(row["seconds"]["fit"] for row in rows)},
    }


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
    values = np.array([row[name] for row in rows])
    error = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{error}"


def seconds(rows: list[dict[str, Any]]) -> str:
    return f"{np.mean([row['seconds']['fit'] for row in rows]):.0f} s"


def markdown(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def scores(group: list[dict[str, Any]]) -> list[str]:
    return [spread(group, "rank", 2), spread(group, "regret", 2), spread(group, "mae", 0)]


def default_table(rows: list[dict[str, Any]]) -> str:
    heading = ["task", "seeds", "rank correlation", "regret@1 (of range)", "MAE", "true returns", "fit"]
    return markdown(
        heading,
        [
            [
                task,
                len(group),
                *scores(group),
                f"{min(group[0]['truth']):.0f} to {max(group[0]['truth']):.0f}",
                seconds(group),
            ]
            for (task,), group in grouped(rows, "task").items()
        ],
    )


def ablation_table(rows: list[dict[str, Any]]) -> str:
    order = list(NAMES)
    groups = sorted(
        grouped(rows, "task", "method").items(), key=lambda item: (item[0][0], order.index(item[0][1]))
    )
    heading = ["task", "method", "seeds", "rank correlation", "regret@1", "MAE", "validation", "fit"]
    return markdown(
        heading,
        [
            [task, NAMES[method], len(group), *scores(group), spread(group, "validation", 3), seconds(group)]
            for (task, method), group in groups
        ],
    )


def held_back_table(rows: list[dict[str, Any]]) -> str:
    return markdown(
        ["task", "imagination", "seeds", "rank correlation", "regret@1", "MAE"],
        [
            [task, imagine or "default", len(group), *scores(group)]
            for (task, imagine), group in grouped(rows, "task", "imagine").items()
        ],
    )


def settings_table(rows: list[dict[str, Any]]) -> str:
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    by_label = {
        label: {row["task"]: f"{row['validation']:.4f}" for row in group}
        for (label,), group in grouped(rows, "label").items()
    }
    return markdown(
        ["change", *(f"{task}: validation" for task in tasks)],
        [[label, *(found.get(task, "") for task in tasks)] for label, found in by_label.items()],
    )


def behaviour_table(rows: list[dict[str, Any]]) -> str:
    def numbers(values: Sequence[float]) -> str:
        return ", ".join(f"{value:.0f}" for value in values)

    return markdown(
        ["task", "sampling", "re-encoding", "imagined", "logged", "error"],
        [
            [
                row["task"],
                row["sampling"],
                f"every {row['reencode_every']}",
                numbers(row["imagined"]),
                numbers(row["logged"]),
                f"{row['error']:.0f}",
            ]
            for row in rows
        ],
    )


def imagination_table(rows: list[dict[str, Any]]) -> str:
    """The error of every way of imagining in every environment, the smallest mean first."""
    environments = list(dict.fromkeys(row["environment"] for row in rows))
    errors = {
        way: np.array([row["error"] for row in group])
        for way, group in grouped(rows, "sampling", "reencode_every").items()
        if len(group) == len(environments)
    }
    if not errors:
        return ""
    ranked = sorted(errors, key=lambda way: errors[way].mean())
    best = errors[ranked[0]]

    def behind(error: np.ndarray) -> str:
        difference = error - best
        deviation = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else 0.0
        return f"{difference.mean():.3f} ± {deviation:.3f}"

    return markdown(
        ["sampling", "re-encoding", *environments, "mean", "behind the first"],
        [
            [
                sampling,
                "never" if every is None else f"every {every}",
                *(f"{error:.3f}" for error in errors[sampling, every]),
                f"{errors[sampling, every].mean():.3f}",
                behind(errors[sampling, every]),
            ]
            for sampling, every in ranked
        ],
    )


def critics_table(rows: list[dict[str, Any]]) -> str:
    """Ways to make critics: errors on the returns of logging policies, in the data and taken out of them."""
    names = {
        "shared norm quad": "shared features, normalised, quadratic part (default)",
        "shared nonorm quad": "shared features, not normalised, quadratic part",
        "shared nonorm": "shared features, not normalised, no quadratic part",
        "separate": "separate networks, normalised",
    }
    return markdown(
        [
            "task",
            "networks",
            "policies",
            "steps",
            "MAE in",
            "MAE taken out",
            "rank",
            "residual",
            "late change",
        ],
        [
            [
                f"{row['env']}-medium-replay",
                names[row["label"]],
                len(row["vals"]),
                row["steps"],
                f"{row['mae_in']:.0f}",
                f"{row['mae_held']:.0f}",
                f"{row['rank']:.2f}",
                f"{row['res']:.1f}",
                f"{row['late']:.0f}",
            ]
            for row in sorted(rows, key=lambda row: (row["env"], list(names).index(row["label"])))
        ],
    )


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


def ratios_table(rows: list[dict[str, Any]]) -> str:
    """Ratios of visits: what they make of the policy that logged, and how sound they are for targets."""
    return markdown(
        [
            "task",
            "method",
            "settings",
            "logging policy",
            "logged",
            "mean ratio",
            "imbalance",
            "effective share",
        ],
        [
            [
                row["task"],
                row["method"],
                ", ".join(row["settings"]) or "default",
                row["logging"],
                f"{row['logged']} ± {row['error']}",
                *(
                    f"{row['of_logging'][name]:.2f}; {np.median(row['of_targets'][name]):.2f}"
                    for name in ("mean_ratio", "imbalance", "effective_share")
                ),
            ]
            for row in rows
        ],
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
        values = np.sort(list(truth(environment).values()))
        gap = np.diff(values).max() / np.ptp(values)
        whole = list(truth(environment, kind="undiscounted").values())
        rows.append([environment, f"{values[0]:.0f} to {values[-1]:.0f}", f"{100 * gap:.0f} %",
                     f"{min(whole):.0f} to {max(whole):.0f}"])  # fmt: skip
    return markdown(["environment", "discounted (0.995)", "largest gap, of the range", "undiscounted"], rows)


def replace_block(path: Path, name: str, text: str) -> None:
    """Put `text` between the marks `<!-- name:begin -->` and `<!-- name:end -->`."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    old = path.read_text(encoding="utf-8")
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(old):
        raise SystemExit(f"{path}: the marks {begin} and {end} are missing")
    write_text(path, pattern.sub(lambda _: f"{begin}\n{text}\n{end}", old))


if __name__ == "__main__":
    main()
