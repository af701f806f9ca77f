"""Draw the figures of docs/results.md from the rows in docs/results/paper, and name them on that page."""

from __future__ import annotations

from results_tables import PAPER
from tabulating import ROOT, replace_block
from vlbm.experiments.figures import draw_figures
from vlbm.experiments.rows import read_rows

FIGURES = ROOT / "docs" / "figures"


def main() -> None:
    rows = read_rows(PAPER)
    FIGURES.mkdir(exist_ok=True)
    for old in FIGURES.glob("*.png"):
        old.unlink()
    shown = []
    for suite in dict.fromkeys(row.suite for row in rows):
        for figure in draw_figures(rows, PAPER, suite):
            (path,) = figure.save(FIGURES, ["png"])
            shown.append(f"**{figure.title}.** {figure.caption}\n\n![{figure.title}](figures/{path.name})")
    replace_block(ROOT / "docs" / "results.md", "figures", "\n\n".join(shown))


if __name__ == "__main__":
    main()
