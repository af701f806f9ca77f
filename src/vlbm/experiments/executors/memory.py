"""The most memory that a process had at once since some moment, where the system says it."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

PROCESS = Path("/proc/self")


def start_measuring() -> None:
    """Count from now on; where that cannot be asked for, the peak is that of the whole process."""
    with suppress(OSError):
        (PROCESS / "clear_refs").write_text("5")


def measure_peak() -> int | None:
    """Bytes; None where the system does not say."""
    with suppress(OSError, ValueError, StopIteration):
        lines = (PROCESS / "status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
