"""Where the user keeps what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """The directory named by VLBM_CACHE, or `vlbm` in the user's cache directory."""
    return Path(os.environ.get("VLBM_CACHE") or _user_cache() / "vlbm")


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
