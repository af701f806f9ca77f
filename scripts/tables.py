"""Write the tables in README.md and docs/ from the stored results in docs/results/."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from vlbm.metrics import absolute_error, rank_correlation, regret
from vlbm.storage import write_text

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
    replace_block(ROOT / "docs" / "study.md", "behaviour", behaviour_table(read("behaviour.jsonl")))
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


def default_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| task | seeds | rank correlation | regret@1 (of the range) | MAE | range of true returns | fit |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for (task,), group in grouped(rows, "task").items():
        truth = np.array(group[0]["truth"])
        cells = [spread(group, "rank", 2), spread(group, "regret", 2), spread(group, "mae", 0)]
        lines.append(
            f"| {task} | {len(group)} | {' | '.join(cells)} | {truth.min():.0f} to {truth.max():.0f} "
            f"| {seconds(group)} |"
        )
    return "\n".join(lines)


def ablation_table(rows: list[dict[str, Any]]) -> str:
    lines = ["| task | method | seeds | rank correlation | regret@1 | MAE | validation | fit |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    order = list(NAMES)
    for (task, method), group in sorted(
        grouped(rows, "task", "method").items(), key=lambda item: (item[0][0], order.index(item[0][1]))
    ):
        cells = [spread(group, "rank", 2), spread(group, "regret", 2), spread(group, "mae", 0)]
        lines.append(
            f"| {task} | {NAMES[method]} | {len(group)} | {' | '.join(cells)} "
            f"| {spread(group, 'validation', 3)} | {seconds(group)} |"
        )
    return "\n".join(lines)


def settings_table(rows: list[dict[str, Any]]) -> str:
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    lines = [
        f"| change | {' | '.join(f'{task}: validation' for task in tasks)} |",
        "|---|" + "---|" * len(tasks),
    ]
    for (label,), group in grouped(rows, "label").items():
        by_task = {row["task"]: f"{row['validation']:.4f}" for row in group}
        lines.append(f"| {label} | {' | '.join(by_task.get(task, '') for task in tasks)} |")
    return "\n".join(lines)


def behaviour_table(rows: list[dict[str, Any]]) -> str:
    lines = ["| task | sampling | re-encoding | imagined | logged | error |", "|---|---|---|---|---|---|"]
    for row in rows:
        imagined, logged = (
            ", ".join(f"{value:.0f}" for value in row[name]) for name in ("imagined", "logged")
        )
        lines.append(
            f"| {row['task']} | {row['sampling']} | every {row['reencode_every']} | {imagined} | {logged} "
            f"| {row['error']:.0f} |"
        )
    return "\n".join(lines)


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
