"""The fenced blocks of a page of the docs, and how each is run as typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from vlbm.cli import main

FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
MARK = re.compile(r"<!-- (?P<kind>not run|file): (?P<what>[^>]+) -->\n\Z")
# Stands in for `vlbm`: notes its arguments, each ended by a zero byte, and a command by another.
SHIM = r"""#!/bin/sh
for argument; do printf "%s\0" "$argument"; done >> "$VLBM_CALLS"
printf "\0" >> "$VLBM_CALLS"
"""


class Block(NamedTuple):
    language: str
    text: str
    reason: str | None  # why it is not run
    file: str | None  # the file that it is the content of

    @property
    def runs(self) -> bool:
        return self.reason is None and self.language in ("python", "sh")


def read_blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        mark = MARK.search(text[: match.start()])
        said = {mark["kind"]: mark["what"]} if mark else {}
        found.append(Block(match["language"], match["text"], said.get("not run"), said.get("file")))
    return found


def run_block(block: Block, place: Path, names: dict[str, Any]) -> None:
    """Run a block in the current folder. Python blocks of a page share `names`, shell blocks variables."""
    if block.file is not None:
        (place / block.file).write_text(block.text, encoding="utf-8")
    elif block.language == "python":
        exec(compile(block.text, "<snippet>", "exec"), names)
    else:
        run_shell(block.text, place)


def run_shell(text: str, place: Path) -> None:
    """Let a real shell expand the block; what it would have given to `vlbm` is then run in this process."""
    tools, calls, variables = place / ".tools", place / ".calls", place / ".variables"
    tools.mkdir(exist_ok=True)
    for name, script in {"vlbm": SHIM, "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n'}.items():
        (tools / name).write_text(script)
        (tools / name).chmod(0o755)
    variables.touch()
    calls.write_bytes(b"")
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "VLBM_CALLS": str(calls)}
    script = f"set -eu\n. {variables}\n{text}\nset | grep '^[A-Z]*=' > {variables}.new || true\n"
    keep = f"grep -v -E '^(PATH|UID|EUID|PPID|SHELLOPTS|BASHOPTS)=' {variables}.new > {variables} || true"
    subprocess.run(["bash", "--norc", "-c", script + keep], cwd=place, env=environment, check=True)
    for call in calls.read_bytes().decode().split("\0\0")[:-1]:
        run_command(call.split("\0") if call else [])


def run_command(arguments: list[str]) -> None:
    try:
        main(arguments)
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise AssertionError(f"vlbm {' '.join(arguments)} ended with {ended.code}") from ended
