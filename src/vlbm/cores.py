"""The number of cores; set before JAX starts, so nothing here imports it."""

from __future__ import annotations

import os
import sys

from vlbm.errors import InputError


def use_cores(count: int | None = None) -> None:
    """Make a JAX device of every core: models then train in parallel, and roll-outs are sharded.

    Call it before JAX computes anything: afterwards its devices are fixed. The command line does. `count`
    or `VLBM_CORES` give another number; with 1 JAX's own threads share the work, which is slower
    (docs/performance.md). Results do not depend on the number, but for rounding.

    Args:
        count: How many devices; by default as many as `VLBM_CORES` says, or as this process may use.
    """
    if "JAX_NUM_CPU_DEVICES" in os.environ and count is None:
        return
    wanted = available_cores() if count is None else count
    if "jax" in sys.modules:
        import jax

        try:
            jax.config.update("jax_num_cpu_devices", wanted)
        except RuntimeError as error:
            raise InputError(
                "use_cores: JAX has already computed something, so its devices are settled; call it first"
            ) from error
    else:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(wanted)


def available_cores() -> int:
    """As many as `VLBM_CORES` says, or as this process may use."""
    given = os.environ.get("VLBM_CORES", "")
    if not given:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not given.isdecimal() or int(given) < 1:
        raise InputError(f"VLBM_CORES={given}: give a whole number of cores, at least 1")
    return int(given)
