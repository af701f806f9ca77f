"""Write the tables in README.md and docs/ from the stored results in docs/results/."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from vlbm.storage import write_text

ROOT = Path(__file__).resolve().parents[1]
NAMES = {
    "vlm": "VLM",
    "vlm-rsa": "VLM+RSA",
    "vlm-rsa-mse": "VLM+RSA(MSE)",
    "vlm-rsa-ensemble": "VLM+RSA ensemble",
    "vlbm": "VLBM",
}


def main() -> None:
    ablation = read("ablation.jsonl")
    replace_block(ROOT / "docs" / "study.md", "ablation", ablation_table(ablation))
    replace_block(ROOT / "docs" / "study.md", "settings", settings_table(read("settings.jsonl")))
    default = [row for row in read("default.jsonl") if not row["imagine"]]
    replace_block(ROOT / "README.md", "study", default_table(default))


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
    for (task, method), group in grouped(rows, "task", "method").items():
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
