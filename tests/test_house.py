"""House rules of the source: what may stand where, and who may import whom."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "vlbm"
TEXTS = {str(path.relative_to(SOURCE)): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
LINES = 400

# What compilers and autodiff are for: nobody does it by hand.
TRICKS = {"custom_vjp", "custom_jvp", "custom_vmap", "custom_gradient", "optimization_barrier"}
# Which device has what is decided in one place.
PLACEMENT = {
    "shard_map",
    "pmap",
    "device_put",
    "default_device",
    "Mesh",
    "make_mesh",
    "NamedSharding",
    "SingleDeviceSharding",
    "PositionalSharding",
    "PartitionSpec",
    "with_sharding_constraint",
    "sharding",
}
PLACE = "parallel.py"
# Words that only their writer understands, where the field has its own.
PRIVATE = {
    "luck",
    "lots",
    "crowd",
    "seats",
    "company",
    "players",
    "believe",
    "believed",
    "paid",
    "seen",
    "moving",
    "reaching",
    "foresight",
    "doubt",
    "doubts",
}
# Where methods and models are.
METHODS = ("estimators/", "nn/", "worlds/")
# Rooms from the ground up: each imports only from those before it.
ROOMS = (
    "data",
    "policies",
    "nn",
    "worlds",
    "results",
    "estimators",
    "experiments",
    "environment",
    "suites",
    "report",
    "cli",
)
# `estimates.report()` opens a page: the one door upstairs.
DOORS = {("results/estimates.py", "experiments"), ("results/estimates.py", "report")}
DOORS |= {("experiments/comparison.py", "report")}
# Files of the estimators' room in the same order; those in one line know nothing of each other.
ESTIMATORS = (
    ("shared_cache", "intervals", "importance_weights"),
    ("likelihood", "transitions"),
    ("behaviour_cloning", "networks"),
    ("backtest", "least_squares"),
    ("base",),
    ("transition_estimator", "fitted_q", "importance", "world_models"),
    ("fqe", "density_ratio"),
    ("dice", "vpm"),
    ("doubly_robust",),
    ("registry",),
)


@cache
def walk(source: str) -> tuple[ast.AST, ...]:
    """All nodes of its syntax tree."""
    return tuple(ast.walk(ast.parse(source)))


@cache
def names(source: str) -> set[str]:
    """Every name that code uses or imports; prose does not count."""
    found = set()
    for node in walk(source):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {part for alias in node.names for part in alias.name.split(".")}
            found |= set((getattr(node, "module", None) or "").split("."))
    return found


@cache
def imported(source: str) -> set[str]:
    """The modules of vlbm that are imported anywhere in it, as paths from the package's root."""
    found = set()
    for node in walk(source):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"vlbm.relative.{alias.name}" for alias in node.names}
    return {name.removeprefix("vlbm.") for name in found if name.startswith("vlbm.")}


def words(source: str) -> set[str]:
    """The words that names in it are made of: of variables, arguments, attributes, functions and classes."""
    found = set(names(source))
    for node in walk(source):
        if isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
    return {word for name in found for word in name.lower().split("_")}


def called_dataclasses(source: str) -> set[str]:
    """Dataclasses that are called as functions are."""
    return {
        node.name
        for node in walk(source)
        if isinstance(node, ast.ClassDef)
        and any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        and any(isinstance(part, ast.FunctionDef) and part.name == "__call__" for part in node.body)
    }


def those_that_use(forbidden: set[str]) -> dict[str, set[str]]:
    used = {module: names(text) & forbidden for module, text in TEXTS.items()}
    return {module: found for module, found in used.items() if found}


def test_nobody_takes_the_work_of_the_compiler_or_of_autodiff_from_them():
    assert those_that_use(TRICKS) == {}


def test_which_device_has_what_is_decided_in_one_place():
    assert set(those_that_use(PLACEMENT)) == {PLACE}


def test_every_file_can_be_read_in_one_sitting():
    long = {module: text.count("\n") for module, text in TEXTS.items()}
    assert {module: lines for module, lines in long.items() if lines > LINES} == {}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_knows_nothing_of_those_that_are_built_on_it(room):
    above = (*ROOMS[ROOMS.index(room) + 1 :], "relative")
    known = {
        (module, name.split(".")[0])
        for module, text in TEXTS.items()
        for name in imported(text)
        if module.startswith(f"{room}/") and name.split(".")[0] in above
    }
    assert known - DOORS == set()


def test_every_room_has_its_place_in_the_order():
    rooms = {module.partition("/")[0] for module in TEXTS if "/" in module}
    assert rooms == set(ROOMS)


def test_estimators_build_on_each_other_in_one_direction():
    level = {name: number for number, row in enumerate(ESTIMATORS) for name in row}
    files = {
        module.split("/")[1].removesuffix(".py"): [] for module in TEXTS if module.startswith("estimators/")
    }
    assert set(files) - {"__init__"} == set(level)
    broken = {
        (module, name)
        for module, text in TEXTS.items()
        if module.startswith("estimators/") and not module.endswith("__init__.py")
        for name in imported(text)
        if name.startswith("estimators.")
        and (own := module.split("/")[1].removesuffix(".py")) != (other := name.split(".")[1])
        and level[other] >= level[own]
    }
    assert broken == set()


def test_names_in_methods_and_models_are_the_fields_words():
    used = {module: words(text) & PRIVATE for module, text in TEXTS.items() if module.startswith(METHODS)}
    assert {module: found for module, found in used.items() if found} == {}


def test_settings_are_not_called_as_functions_are():
    found = {module: called_dataclasses(text) for module, text in TEXTS.items() if module.startswith(METHODS)}
    assert {module: called for module, called in found.items() if called} == {}


def test_rules_see_what_breaks_them():
    assert words("def put(seen_rows, *, x=1): self.is_paid = x") >= {"seen", "rows", "put", "paid"}
    assert called_dataclasses("@dataclass(frozen=True)\nclass Loss:\n    def __call__(self): ...") == {"Loss"}
    assert not called_dataclasses("class Layer(Module):\n    def __call__(self): ...")
    assert names("import jax\n@jax.custom_vjp\ndef f(x): ...") & TRICKS
    assert names("from jax.sharding import Sharding") & PLACEMENT
    assert not names('"""device_put and shard_map"""  # Mesh') & PLACEMENT
    assert imported("def f():\n    from vlbm.cli import main") == {"cli.main"}
    assert imported("from . import base") == {"relative.base"}
    assert {PLACE, "nn/layers.py", "worlds/vlbm.py", "estimators/base.py"} <= set(TEXTS)
