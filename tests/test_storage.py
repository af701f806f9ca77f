"""Trees of arrays on disk: exact, checked, and written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from systems import bits
from vlbm.errors import InputError
from vlbm.storage import load_tree, read_information, save_tree


class Inner(eqx.Module):
    weight: Any
    name: str = eqx.field(static=True)


class Outer(NamedTuple):
    inner: Inner
    parts: tuple[Any, ...]
    count: Any
    missing: None = None


def tree(shift: float = 0.0) -> Outer:
    values = np.array([0.1, -0.0, np.inf, np.nan, 1e-45], np.float32) + np.float32(shift)
    inner = Inner(jnp.asarray(values), "inner")
    return Outer(inner, (np.arange(6, dtype=np.int64).reshape(2, 3), np.array([True, False])), 3)


@pytest.fixture
def saved(tmp_path) -> Path:
    path = tmp_path / "folder" / "tree.safetensors"
    save_tree(path, tree(), information={"step": 7, "settings": {"head_units": [8, 4]}})
    return path


def test_a_tree_comes_back_to_the_bit(saved):
    loaded = load_tree(saved, tree(1.0))
    assert bits(loaded) == bits(tree())
    assert loaded.inner.name == "inner"
    assert loaded.missing is None
    assert loaded.count == 3
    assert isinstance(loaded.count, int)
    assert [np.asarray(part).dtype for part in loaded.parts] == [np.int64, np.bool_]


def test_information_comes_back_as_json_gave_it(saved):
    assert read_information(saved) == {"step": 7, "settings": {"head_units": [8, 4]}}


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.safetensors: there is no such file"):
        read_information(tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize("kept", [0, 5, 60, -1])
def test_a_truncated_file_is_refused(saved, kept):
    content = saved.read_bytes()
    saved.write_bytes(content[:kept])
    with pytest.raises(InputError, match=r"tree\.safetensors: not a whole safetensors file"):
        read_information(saved)
    with pytest.raises(InputError, match=r"tree\.safetensors: cannot be read"):
        load_tree(saved, tree())


def test_a_file_of_another_program_is_refused(tmp_path):
    path = tmp_path / "other.safetensors"
    safetensors.numpy.save_file({"weight": np.zeros(3)}, path)
    with pytest.raises(InputError, match="not written by vlbm"):
        read_information(path)


def test_a_tree_of_another_shape_is_refused_by_the_tensor_that_differs(saved):
    wider = tree()._replace(inner=Inner(jnp.zeros(9), "inner"))
    with pytest.raises(InputError, match=r"inner\.weight' has shape \(5,\), expected \(9,\)"):
        load_tree(saved, wider)
    longer = tree()._replace(parts=(*tree().parts, np.zeros(2)))
    with pytest.raises(InputError, match=r"parts\[2\]' is missing; the file belongs to other settings"):
        load_tree(saved, longer)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(saved, monkeypatch):
    before = saved.read_bytes()

    def fail(path, content):
        with path.open("wb") as file:
            file.write(b"half of")
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="no space"):
        save_tree(saved, tree(1.0), information={})
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]
