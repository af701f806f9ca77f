"""Compiled programs are kept on disk, so that a second run of the same shapes starts at once."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import jax


@cache
def keep_programs() -> None:
    """Turn JAX's persistent cache on, unless the user has set one up or VLBM_CACHE is empty."""
    place = os.environ.get("VLBM_CACHE", str(_user_cache() / "vlbm"))
    if not place or getattr(jax.config, "jax_compilation_cache_dir", None) is not None:
        return
    jax.config.update("jax_compilation_cache_dir", str(Path(place) / "programs"))
    # Small programs are worth keeping too: a fit compiles dozens of them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
