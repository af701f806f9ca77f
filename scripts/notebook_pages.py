"""A hook of mkdocs: every notebook in docs/notebooks becomes a page of the site."""

from __future__ import annotations

from pathlib import Path

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted(Path(config.docs_dir, "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=as_markdown(path)))
    return files


def as_markdown(path: Path) -> str:
    """The cells in order; outputs are left out, for notebooks are kept without them."""
    cells = nbformat.read(path, as_version=4).cells
    parts = [
        cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```" for cell in cells
    ]
    return "\n\n".join(parts) + f"\n\nThe notebook itself: `docs/notebooks/{path.name}`, in a clone.\n"
