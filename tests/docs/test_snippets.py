"""Every Python and shell block of the README and the docs runs as typed, or says why it is not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from snippets import read_blocks, run_block

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCKS = {str(page.relative_to(ROOT)): read_blocks(page) for page in PAGES}


@pytest.mark.parametrize("page", [page for page, blocks in BLOCKS.items() if any(b.runs for b in blocks)])
def test_blocks_run_as_typed(page, prepared, small_settings):
    names = {"__name__": "__snippet__"}
    for block in BLOCKS[page]:
        if block.runs:
            run_block(block, prepared, names)


def test_every_block_says_its_language():
    languages = {block.language for page in BLOCKS.values() for block in page}
    assert languages <= {"python", "sh", "text", ""}


def test_most_blocks_are_run():
    blocks = [block for page in BLOCKS.values() for block in page if block.language in ("python", "sh")]
    assert sum(block.runs for block in blocks) > 0.7 * len(blocks)
