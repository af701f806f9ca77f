"""Tables as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from vlbm.experiments.tables import Block, Cell, Line, ScoreTable, format_deviation, format_mean
from vlbm.storage import write_text

NOTHING = "\N{EN DASH}"
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "±": r"$\pm$",
        NOTHING: "--",
        "\n": " ",
    }
)


def write_table(table: ScoreTable, folder: Path, formats: Sequence[str]) -> list[Path]:
    """One file for every format that is asked for."""
    paths = []
    for suffix, make in WRITERS.items():
        if suffix in formats:
            paths.append(folder / f"{table.name}.{suffix}")
            write_text(paths[-1], make(table))
    return paths


def mark(number: int) -> str:
    """The footnote's letter: a to z, then aa, ab, ..."""
    letters = ""
    while number >= 0:
        letters = chr(ord("a") + number % 26) + letters
        number = number // 26 - 1
    return letters


def marks(cell: Cell) -> str:
    return ",".join(mark(note) for note in cell.notes)


def plain_cell(cell: Cell) -> str:
    """Mean ± deviation; a dash where there are notes but no number, nothing where there is nothing."""
    if cell.mean is None:
        return "failed" if cell.failed else NOTHING if cell.notes else ""
    deviation = format_deviation(cell)
    return format_mean(cell) + (f" ± {deviation}" if deviation else "")


def as_markdown(table: ScoreTable) -> str:
    def show(cell: Cell) -> str:
        text = f"**{plain_cell(cell)}**" if cell.best else plain_cell(cell)
        return text + (f"<sup>{marks(cell)}</sup>" if cell.notes else "")

    lines = [f"# {table.title}", "", table.caption, ""]
    for block in table.blocks:
        heading = [table.metric, *(title for _, title in block.columns)]
        rows = [heading, ["---"] + ["---:"] * len(block.columns)]
        rows += [[line.label, *map(show, line.cells)] for line in block.lines]
        lines += [f"| {' | '.join(part.replace('|', '&#124;') for part in row)} |" for row in rows]
        lines.append("")
    lines += [f"<sup>{mark(number)}</sup> {note}  " for number, note in enumerate(table.notes)]
    return "\n".join(lines).rstrip() + "\n"


def escape_latex(text: str) -> str:
    return text.translate(LATEX)


def as_latex(table: ScoreTable) -> str:
    """A table for booktabs, with deviations as subscripts like the paper's."""

    def show(cell: Cell) -> str:
        note = f"$^{{\\mathrm{{{marks(cell)}}}}}$" if cell.notes else ""
        if cell.mean is None:
            return escape_latex(plain_cell(cell)) + note
        mean = rf"\mathbf{{{format_mean(cell)}}}" if cell.best else format_mean(cell)
        deviation = format_deviation(cell)
        return f"${mean}{f'_{{{deviation}}}' if deviation else ''}$" + note

    def show_line(line: Line) -> str:
        label = escape_latex(line.label)
        return " & ".join([rf"\textit{{{label}}}" if line.published else label, *map(show, line.cells)])

    def show_block(block: Block) -> str:
        titles = (escape_latex(title) for _, title in block.columns)
        heading = " & ".join([rf"\textbf{{{escape_latex(table.metric)}}}", *titles])
        # Shorter blocks are filled up, for all stand in one tabular.
        missing = " &" * (width - len(block.columns))
        rows = [heading, *map(show_line, block.lines)]
        rows = [rf"{row}{missing} \\" for row in rows]
        return "\n".join([rows[0] + r" \midrule", *rows[1:]])

    width = max(len(block.columns) for block in table.blocks)
    lines = [
        "% needs booktabs",
        r"\begin{table}[t]",
        r"\centering",
        r"\small",
        rf"\begin{{tabular}}{{@{{}}l{'r' * width}@{{}}}}",
        r"\toprule",
        "\n\\midrule\n".join(show_block(block) for block in table.blocks),
        r"\bottomrule",
        r"\end{tabular}",
        *(
            rf"\par\footnotesize $^{{\mathrm{{{mark(number)}}}}}$ {escape_latex(note)}"
            for number, note in enumerate(table.notes)
        ),
        rf"\caption{{{escape_latex(table.caption)}}}",
        rf"\label{{table:{table.name}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def as_csv(table: ScoreTable) -> str:
    """One record for every cell that has something in it, with all digits."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        ["column", "method", "source", "seeds", "mean", "standard_deviation", "best", "failed", "notes"]
    )
    for block in table.blocks:
        for line in block.lines:
            for (column, _), cell in zip(block.columns, line.cells, strict=True):
                if cell.mean is not None or cell.notes:
                    numbers = ["" if value is None else value for value in (cell.mean, cell.deviation)]
                    writer.writerow(
                        [
                            column,
                            line.label,
                            "published" if line.published else "ours",
                            cell.seeds or "",
                            *numbers,
                            int(cell.best),
                            int(cell.failed),
                            "; ".join(table.notes[note] for note in cell.notes),
                        ]
                    )
    return buffer.getvalue()


WRITERS: dict[str, Callable[[ScoreTable], str]] = {"md": as_markdown, "tex": as_latex, "csv": as_csv}
