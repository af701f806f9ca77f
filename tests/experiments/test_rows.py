"""Stored rows: what is written is read again, and what is damaged is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from made_benchmarks import made_failure, made_row
from vlbm.errors import InputError
from vlbm.experiments.rows import Latents, read_latents, read_rows, row_path, write_row

LATENTS = Latents(np.ones((4, 2), np.float32), np.array([0, 1, 2, 2]), np.ones(4, np.float32))


def stored(directory: Path, **changes: object) -> Path:
    """The file of a row, some of whose fields were changed by hand afterwards."""
    path = write_row(directory, made_row())
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in values.items() if value != "absent"}))
    return path


def test_a_row_is_read_as_it_was_written(tmp_path):
    row = made_row(settings={"steps": 5}, branch_weights=((0.5, 0.5), (0.25, 0.75)))
    write_row(tmp_path, row)
    assert read_rows(tmp_path) == [row]


def test_a_failed_row_has_no_estimates_and_says_why(tmp_path):
    write_row(tmp_path, made_failure("pendulum", "fqe", 1, "the loss diverged"))
    (found,) = read_rows(tmp_path)
    assert (found.failed, found.policies, found.scores) == ("the loss diverged", {}, None)
    assert math.isnan(found.seconds["fit"])


def test_a_metric_without_a_value_is_null_in_the_file_and_nan_in_the_row(tmp_path):
    path = write_row(tmp_path, made_row(dope_regret=math.nan))
    assert json.loads(path.read_text())["scores"]["dope_regret"] is None
    assert math.isnan(read_rows(tmp_path)[0].scores["dope_regret"])


def test_every_setting_seed_and_task_has_a_file_of_its_own(tmp_path):
    rows = [
        made_row(),
        made_row(seed=1),
        made_row(settings={"steps": 5}),
        made_row(preset="paper"),
        made_row("dope/hopper-medium"),
        made_row("hopper-medium"),
        made_row("dope/hopper-medium (regenerated)"),
    ]
    assert len({row_path(tmp_path, row) for row in rows}) == len(rows)
    path = row_path(tmp_path, made_row("dope/hopper-medium (regenerated)", "vlm-rsa", 2))
    assert path.parent == tmp_path / "rows" / "dope--hopper-medium-regenerated"
    assert path.name == f"vlm-rsa-default-{made_row().digest}-2.json"


def test_settings_in_another_order_are_the_same_settings():
    assert made_row(settings={"a": 1, "b": 2}).digest == made_row(settings={"b": 2, "a": 1}).digest
    assert len(made_row().digest) == 8


def test_what_a_killed_process_left_unfinished_is_not_read(tmp_path):
    path = write_row(tmp_path, made_row())
    path.with_name(f".{path.name}.abc.json").write_text("{")
    assert len(read_rows(tmp_path)) == 1


def test_a_directory_without_rows_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no benchmark"):
        read_rows(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": "absent"}, "field 'seed' is missing"),
        ({"seed": True}, "field 'seed' must be a whole number"),
        ({"task": 3}, "field 'task' must be a text"),
        ({"data": {"checksum": "x", "episodes": 1}}, "field 'data.steps' is missing"),
        ({"data": 3}, "field 'data' must be a JSON object"),
        ({"scores": {"rank_correlation": "good"}}, "field 'scores.rank_correlation' must be a finite number"),
        ({"policies": {"hare": {"value": None}}}, "field 'policies.hare.value' must be a finite number"),
        ({"policies": {}}, "field 'policies' is empty"),
        ({"truth": {"hare": 1.0}}, "field 'truth' lacks snail, tortoise"),
        ({"truth": None}, "field 'truth' is missing, though there are scores"),
        ({"branch_weights": [1.0]}, "field 'branch_weights' must be lists of numbers"),
        (
            {"estimand": {"discount": 1, "horizon": 3, "actions": "wild"}},
            "field 'estimand.actions' actions wild",
        ),
        ({"seconds": {"fit": 1.0}}, "field 'seconds.evaluate' is missing"),
    ],
)
def test_a_damaged_field_is_named_with_its_file(changes, words, tmp_path):
    path = stored(tmp_path, **changes)
    with pytest.raises(InputError) as error:
        read_rows(tmp_path)
    message = str(error.value)
    assert str(path) in message
    assert words in message
    assert "\n" not in message


def test_a_file_that_is_not_json_is_refused(tmp_path):
    path = write_row(tmp_path, made_row())
    path.write_text(path.read_text()[:50])
    with pytest.raises(InputError, match="is not JSON"):
        read_rows(tmp_path)
    path.write_text("[1, 2]")
    with pytest.raises(InputError, match="the file must be a JSON object"):
        read_rows(tmp_path)


def test_a_row_under_another_rows_name_would_count_twice_and_is_refused(tmp_path):
    path = write_row(tmp_path, made_row())
    path.with_name("copy.json").write_text(path.read_text())
    with pytest.raises(InputError, match=r"copy\.json: its contents belong into"):
        read_rows(tmp_path)


def test_latents_are_stored_beside_their_row(tmp_path):
    write_row(tmp_path, made_row(), LATENTS)
    found = read_latents(tmp_path, made_row())
    np.testing.assert_array_equal(found.latent, LATENTS.latent)
    np.testing.assert_array_equal(found.owner, LATENTS.owner)
    assert read_latents(tmp_path, made_row(seed=1)) is None


@pytest.mark.parametrize(
    ("latents", "words"),
    [
        (Latents(LATENTS.latent, np.array([0, 1, 2, 3]), LATENTS.returns), "names policies"),
        (Latents(LATENTS.latent[:3], LATENTS.owner, LATENTS.returns), "a row for each step"),
        (Latents(LATENTS.latent * np.nan, LATENTS.owner, LATENTS.returns), "not finite"),
    ],
)
def test_latents_that_do_not_fit_their_row_are_refused(latents, words, tmp_path):
    write_row(tmp_path, made_row(), latents)
    with pytest.raises(InputError, match=words):
        read_latents(tmp_path, made_row())
