"""JAX's persistent compilation cache, so that later runs of the same shapes need not compile."""

from __future__ import annotations

import os
from functools import cache

import jax

from vlbm.storage import cache_directory


@cache
def enable_compilation_cache() -> None:
    """Turn JAX's persistent cache on, unless the user has set one up or VLBM_CACHE is empty."""
    if os.environ.get("VLBM_CACHE") == "" or getattr(jax.config, "jax_compilation_cache_dir", None):
        return
    jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "programs"))
    # Cache small programs too: a fit compiles dozens of them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
