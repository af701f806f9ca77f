"""Data flows one way: a module imports only from rooms above its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import vlbm

# From the top down; rooms on one line do not know each other.
ROOMS = (
    ("version", "errors", "places"),
    ("cores", "devices"),
    ("episodes", "seating"),
    ("selection",),
    ("storage", "progress", "compilation", "fingerprints"),
    ("tracing",),
    ("sources", "inspection"),
    ("policies",),
    ("scaling", "distributions", "backward", "pieces"),
    ("normalising",),
    ("networks", "drawing"),
    ("recurrence", "windows"),
    ("feeding", "workplaces", "schedule"),
    ("training",),
    ("models",),
    ("chance",),
    ("settling",),
    ("unrolling",),
    ("rollout",),
    ("metrics", "estimate"),
    ("diagnostics",),
    ("estimators",),
    ("evidence",),
    ("suites", "comparison"),
    ("report",),
    ("environment",),
    ("cli",),
    ("__main__",),
)
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
PACKAGE = Path(vlbm.__file__).parent
# The public map names every room, but looks into none until asked.
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(node: ast.AST, package: str) -> Iterator[str]:
    """The modules of vlbm that importing this one imports: not in functions, not for type checkers."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "vlbm")
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")
        base = above[: len(above) + 1 - node.level] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        if module == "vlbm":
            yield from (f"vlbm.{alias.name}" for alias in node.names)
        elif module.startswith("vlbm."):
            yield module
    elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in node.orelse if typing_only else ast.iter_child_nodes(node):
            yield from imports_of(child, package)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_rooms_above_it(path):
    room = room_of(path)
    assert room in LEVEL, f"the room '{room}' has no place in the order yet"
    package = ".".join(["vlbm", *path.relative_to(PACKAGE).parts[:-1]])
    for module in imports_of(ast.parse(path.read_text()), package):
        other = module.split(".")[1]
        if other == room:
            continue
        assert LEVEL[other] < LEVEL[room], f"'{room}' must not import '{module}': that room is not above it"


def test_imports_in_functions_and_for_type_checkers_do_not_count():
    source = """
import numpy
from typing import TYPE_CHECKING
import vlbm.errors
from vlbm import storage
from . import checks
from ..episodes import Episodes
if TYPE_CHECKING:
    from vlbm.cli import main
else:
    from vlbm.report import page
try:
    import vlbm.metrics
except ImportError:
    pass
def late():
    from vlbm.environment import LearnedEnvironment
class Thing:
    from vlbm.scaling import Scaler
    def method(self):
        import vlbm.suites
"""
    found = set(imports_of(ast.parse(source), "vlbm.policies"))
    assert found == {
        "vlbm.errors",
        "vlbm.storage",
        "vlbm.policies",
        "vlbm.episodes",
        "vlbm.report",
        "vlbm.metrics",
        "vlbm.scaling",
    }
