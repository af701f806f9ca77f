"""How many cores are used; must be settled before JAX starts, so nothing here imports it."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

from vlbm.errors import InputError

# Where every core has a device of its own, nothing within a device is to be divided among threads, and sums
# are faster without the library that does products. XLA stops at flags it does not know, so they are only
# given to the releases they were tried with.
TRIED = "0.10."
FLAGS = (
    "--xla_disable_hlo_passes=cpu-parallel-task-assigner",
    "--xla_cpu_multi_thread_eigen=false",
    "--xla_cpu_experimental_ynn_fusion_type=individual_dot",
)


def use_cores(count: int | None = None) -> None:
    """Make a JAX device of every core: models then train side by side, and roll-outs are split.

    Call it before JAX computes anything: afterwards its devices are settled. The command line does. `count`
    or `VLBM_CORES` give another number; with 1 JAX's own threads share the work, which is slower
    (docs/performance.md). Imagined episodes depend on the number, because each device has its own luck;
    models trained side by side do not.
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
    if wanted > 1 and version("jaxlib").startswith(TRIED):
        given = os.environ.get("XLA_FLAGS", "")
        # What the user has set stays as it is.
        more = [flag for flag in FLAGS if flag.partition("=")[0] not in given]
        os.environ["XLA_FLAGS"] = " ".join([given, *more]).strip()


def available_cores() -> int:
    """As many as `VLBM_CORES` says, or as this process may use."""
    given = os.environ.get("VLBM_CORES", "")
    if not given:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not given.isdecimal() or int(given) < 1:
        raise InputError(f"VLBM_CORES={given}: give a whole number of cores, at least 1")
    return int(given)
