"""A digest differs wherever tracing could."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm import fingerprints
from vlbm.estimators.worlds.settings import Lesson
from vlbm.estimators.worlds.vlbm import VLBM
from vlbm.fingerprints import NotPlainError, described, fingerprint, source_digest
from vlbm.schedule import Schedule


@dataclass(frozen=True)
class Foreign:
    """Plain, but of a module whose code is in no digest."""

    units: int = 3


def test_equal_values_have_the_same_digest_and_numbers_in_arrays_do_not_count():
    first = fingerprint(VLBM(), Schedule(), {"weight": jnp.zeros((2, 3))})
    assert fingerprint(VLBM(), Schedule(), {"weight": jnp.ones((2, 3))}) == first


def test_another_process_finds_the_same_digest():
    code = "import jax; from vlbm.fingerprints import fingerprint; print(fingerprint(1, jax.random.key(0)))"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout != ""


@pytest.mark.parametrize("change", [{"units": 64}, {"alignment_weight": 0.2}, {"head_units": (128,)}])
def test_any_setting_makes_another_digest(change):
    assert fingerprint(Lesson(replace(VLBM(), **change), 10)) != fingerprint(Lesson(VLBM(), 10))


@pytest.mark.parametrize(
    "other",
    [
        {"a": jnp.zeros(4)},
        {"a": jnp.zeros(3, jnp.int32)},
        {"b": jnp.zeros(3)},
        {"a": (jnp.zeros(3),)},
        {"a": jnp.asarray(0.0)},
        {"a": jax.random.key(0)},
    ],
)
def test_other_shapes_types_or_places_make_another_digest(other):
    assert fingerprint(other) != fingerprint({"a": jnp.zeros(3)})


def test_numbers_that_python_promotes_weakly_are_told_apart():
    assert described(jnp.asarray(1)) != described(jnp.asarray(1, jnp.int32))


def test_a_changed_setting_of_jax_makes_another_digest():
    before = fingerprint(1)
    with jax.default_matmul_precision("float32"):
        assert fingerprint(1) != before
    assert fingerprint(1) == before


def test_another_version_of_a_library_makes_another_digest(monkeypatch):
    before = fingerprint(1)
    monkeypatch.setattr(fingerprints, "_versions", lambda: ("jax 99",))
    assert fingerprint(1) != before


@pytest.mark.parametrize(
    "value",
    [
        abs,
        lambda x: x,
        partial(max, 1),
        Foreign(),
        {"units": Foreign()},
        np.zeros(3),
        np.float64(1.0),
        {1, 2},
        object(),
        Lesson(VLBM(units=np.int64(4)), 10),
    ],
)
def test_what_has_no_complete_description_is_refused(value):
    with pytest.raises(NotPlainError):
        fingerprint(value)


def test_settings_with_a_method_of_their_own_are_refused():
    class Altered(VLBM):
        def draw(self, source, *, steps, key):
            return source

    with pytest.raises(NotPlainError):
        fingerprint(Altered())


def source(directory: Path, text: str) -> Path:
    directory.mkdir()
    (directory / "module.py").write_text(text)
    return directory


def test_changed_source_makes_another_digest(tmp_path):
    first, same, other = (
        source(tmp_path / name, text) for name, text in (("a", "x = 1"), ("b", "x = 1"), ("c", "x = 2"))
    )
    later = (first / "module.py").stat().st_mtime + 3600
    assert source_digest(first, later) == source_digest(same, later) != source_digest(other, later)
    os.rename(same / "module.py", same / "renamed.py")
    source_digest.cache_clear()
    assert source_digest(same, later) != source_digest(first, later)


def test_source_that_changed_after_it_was_imported_is_refused(tmp_path):
    package = source(tmp_path / "a", "x = 1")
    before = (package / "module.py").stat().st_mtime - 1
    with pytest.raises(NotPlainError, match=r"module\.py has changed"):
        source_digest(package, before)
