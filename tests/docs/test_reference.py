"""The reference names everything public, and docstrings name every argument."""

from __future__ import annotations

import inspect
import re
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

import vlbm
from vlbm.estimators.base import Estimator, Evaluator
from vlbm.suites.base import Task
from vlbm.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
PAGES = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
NAMES = sorted(set(vlbm.__all__) - {"__version__"})
# These come out of vlbm: users read their fields, and give none.
RESULTS = ("Comparison", "Episodes", "Estimate", "Estimates")
METHODS = [Estimator.fit, Evaluator.evaluate]
METHODS += [
    getattr(vlbm.Episodes, name) for name in ("from_arrays", "from_dataframe", "from_minari", "returns")
]
METHODS += [vlbm.Estimates.report, vlbm.Estimand.from_request]


def documented(text: str | None) -> set[str]:
    """The names in the section of arguments of a Google-style docstring."""
    section = re.search(r"\n(?:Args|Attributes):\n(.*?)(?:\n\S|\Z)", inspect.cleandoc(text or ""), re.DOTALL)
    return set(re.findall(r"^    \**(\w+):", section[1], re.MULTILINE)) if section else set()


def arguments(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self", "cls"}


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_in_the_reference(name):
    assert re.search(rf"^::: vlbm(\.\w+)*\.{name}$", PAGES, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_of_public_names_name_every_argument(name):
    public = getattr(vlbm, name)
    assert public.__doc__
    if is_dataclass(public) and name not in RESULTS:
        said = set().union(*(documented(kind.__doc__) for kind in public.__mro__[:-1]))
        assert {field.name for field in fields(public) if field.init} - said == set()
    elif inspect.isfunction(public) or name.startswith("Learned"):
        assert arguments(public) - documented(public.__doc__) == set()


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__qualname__)
def test_docstrings_of_methods_name_every_argument(method):
    assert arguments(method) - documented(method.__doc__) == set()


def test_a_task_says_what_it_holds():
    assert {field.name for field in fields(Task)} - documented(Task.__doc__) == set()


def test_the_page_on_installing_lists_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert set(extras) == set(re.findall(r"`(\w+)`", "".join(rows)))


def test_the_citation_is_of_this_version():
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
