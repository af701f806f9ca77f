"""What many tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Compiling dominates tests of small models: it is done quickly rather than well, and kept from run to run.
# Both must be said before JAX starts. Slow tests (COMPILE_AS_USERS_DO) compile as users do.
QUICK_COMPILATION = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",  # the largest part: half of what compiling takes
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",  # every core has a test of its own
)
if not os.environ.get("COMPILE_AS_USERS_DO"):
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *QUICK_COMPILATION])
os.environ.setdefault("VLBM_CACHE", str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "vlbm"))

import jax
import pytest

from vlbm.compilation import enable_compilation_cache

enable_compilation_cache()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of few long tests come first: at the end they would leave the other worker without work."""
    items.sort(key=lambda item: not item.nodeid.startswith(("tests/docs/", "tests/worlds/")))


@pytest.fixture(autouse=True, scope="module")
def forget_programs() -> Iterator[None]:
    """Every compiled program takes memory maps, of which a process has 65,530: past that JAX crashes."""
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def forget_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module that a test writes and imports must not stand in for another test's of the same name."""
    yield
    written = str(tmp_path_factory.getbasetemp())
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(written):
            del sys.modules[name]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the real DOPE files, where it is present."""
    place = Path(__file__).resolve().parents[2] / "shared"
    if not (place / "dope").is_dir():
        pytest.skip("the real DOPE files are not here (a folder 'shared' beside the repository)")
    return place
