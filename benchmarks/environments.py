"""Peers live in virtual environments of their own, made when they are first needed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from telling import say, told

PLACE = Path(__file__).resolve().parent
ENVIRONMENTS = Path(os.environ.get("VLBM_PEERS", PLACE / ".peers"))
LIMIT = 1200  # seconds


class PeerError(Exception):
    """A peer that could not be installed or run, and why."""


def ask_peer(peer: str, script: str, *arguments: str) -> dict[str, Any]:
    """What a script of `peers/` tells when it runs in the peer's environment."""
    command = [str(python_of(peer)), str(PLACE / "peers" / script), *arguments]
    # The peer's environment must not see vlbm's packages.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        raise PeerError(f"{peer} failed: {lines[-1]}")
    return told(done.stdout)


def python_of(peer: str) -> Path:
    """The peer's Python; its environment is made if there is none that fits its list of versions."""
    listed = PLACE / "peers" / f"{peer}.txt"
    folder = ENVIRONMENTS / f".venv-{peer}"
    python, mark = folder / "bin" / "python", folder / "versions"
    version = hashlib.sha256(listed.read_bytes()).hexdigest()
    if python.exists() and mark.is_file() and mark.read_text() == version:
        return python
    say(f"setting up {peer} in {folder}")
    torch = [line for line in listed.read_text().splitlines() if line.startswith("torch==")]
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [*install, *torch],
        [*install, "-r", str(listed)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no reason was given"]
            raise PeerError(f"{peer} cannot be installed: {lines[-1]}")
    mark.write_text(version)
    return python
