"""Saved models whose headers claim what the file does not hold."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from systems import linear_logs
from vlbm.errors import InputError
from vlbm.estimators.registry import load_model
from vlbm.estimators.world_models.evaluator import MODEL_FILE
from vlbm.estimators.world_models.feedforward import FeedForward
from vlbm.storage import load_arrays, read_information, save_arrays

SECONDS = 30.0  # what is refused at once takes far less, on a busy machine too
HUGE = 10**9


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("model")
    settings = FeedForward(members=2, units=(3,), steps=2, validate_every=1, batch=2)
    settings.fit(linear_logs(n_actions=3)).save(place)
    return place / MODEL_FILE


def changed(original: Path, folder: Path, path: tuple[str, ...], value: Any) -> Path:
    """The model with another value at this place in its header."""
    information = dict(read_information(original))
    inner = information
    for name in path[:-1]:
        inner[name] = dict(inner[name])
        inner = inner[name]
    inner[path[-1]] = value
    save_arrays(folder / MODEL_FILE, load_arrays(original), information=information)
    return folder


CLAIMS = [
    (("models",), HUGE),
    (("models",), 0),
    (("models",), "many"),
    (("starts",), HUGE),
    (("starts",), -3),
    (("references",), HUGE),
    (("references",), "all"),
    (("horizon",), 0),
    (("horizon",), 2**70),
    (("shape", "observations"), HUGE),
    (("shape", "actions"), HUGE),
    (("shape", "n_actions"), 2**31),
    (("shape", "terminates"), 3),
    (("shape",), None),
    (("settings", "members"), HUGE),
    (("settings", "units"), [HUGE]),
    (("settings", "units"), [1] * 100_000),
    (("settings", "units"), "wide"),
    (("settings", "batch"), "large"),
    (("settings", "clip"), {}),
    (("settings", "held_out"), True),
    (("settings",), []),
    (("histories",), []),
    (("histories",), [{}, 3]),
    (("data",), None),
    (("data", "steps"), None),
    (("notes",), "no"),
    (("method",), "fqe"),
    (("method",), "unheard-of"),
    (("method",), ["ff"]),
]


@pytest.mark.parametrize(("path", "value"), CLAIMS, ids=lambda part: str(part)[:30])
def test_a_claim_is_refused_at_once(original, tmp_path, path, value):
    began = time.monotonic()
    with pytest.raises(InputError, match=r"model\.safetensors: "):
        load_model(changed(original, tmp_path, path, value))
    assert time.monotonic() - began < SECONDS


@pytest.mark.parametrize("name", ["method", "settings", "shape", "models", "histories", "notes", "data"])
def test_what_is_missing_is_named(original, tmp_path, name):
    information = {key: value for key, value in read_information(original).items() if key != name}
    save_arrays(tmp_path / MODEL_FILE, load_arrays(original), information=information)
    with pytest.raises(InputError, match=rf"model\.safetensors: .*'{name}' is missing"):
        load_model(tmp_path)


def test_a_header_that_is_no_table_is_refused(original, tmp_path):
    save_arrays(tmp_path / MODEL_FILE, load_arrays(original), information=[1, 2])  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"model\.safetensors: .*no table"):
        load_model(tmp_path)


@pytest.mark.parametrize("change", [lambda array: array.astype(np.int32), lambda array: array * np.nan])
def test_tensors_are_numbers_of_their_own_type(original, tmp_path, change):
    arrays = load_arrays(original)
    name = next(name for name in arrays if name.endswith("bias"))
    arrays[name] = change(arrays[name])
    save_arrays(tmp_path / MODEL_FILE, arrays, information=read_information(original))
    with pytest.raises(InputError, match=r"model\.safetensors: tensor '.*bias' (has the wrong type|holds)"):
        load_model(tmp_path)


def test_a_model_does_not_wait_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / MODEL_FILE)
    with pytest.raises(InputError, match="is a FIFO, not a file"):
        load_model(tmp_path)
