"""train(): on models of a few numbers, where every step can be followed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from systems import bits, noise_logs
from vlbm.data.sampler import MappedSampler, Plan, Sampler, Window
from vlbm.data.view import EpisodeView
from vlbm.errors import InputError, TrainingDivergedError
from vlbm.nn import training
from vlbm.nn.optimiser import Schedule
from vlbm.nn.training import History, LossOutput, train
from vlbm.progress import Progress, Report

TARGET = np.array([1.0, -2.0, 0.5], np.float32)


class Point(eqx.Module):
    """A point that looks for the target; `visits` counts steps as running averages are kept."""

    weight: jax.Array
    bias: jax.Array
    visits: jax.Array

    def __init__(self):
        self.weight, self.bias, self.visits = jnp.zeros(3), jnp.ones(2), jnp.zeros(())


def noisy_distance(point: Point, target: jax.Array, key: jax.Array) -> LossOutput:
    noise = 0.1 * jax.random.normal(key, (3,))
    loss = ((point.weight - target + noise) ** 2).sum() + (point.bias**2).sum()
    moved = eqx.tree_at(lambda point: point.visits, point, jax.lax.stop_gradient(point.visits + 1))
    return LossOutput(loss, {"loss": loss}, moved)


def distance(point: Point) -> float:
    return float(((np.asarray(point.weight) - TARGET) ** 2).sum())


SCHEDULE = Schedule(steps=60, learning_rate=0.1, validate_every=20)


def descend(
    evaluate: Callable[..., LossOutput] = noisy_distance,
    *,
    data: Any = TARGET,
    schedule: Schedule = SCHEDULE,
    validate: Callable[[Point], float] = distance,
    seed: int = 0,
    **options: Any,
) -> tuple[Point, History]:
    return train(
        evaluate,
        Point(),
        jax.tree.map(jnp.asarray, data),
        schedule=schedule,
        validate=validate,
        key=jax.random.key(seed),
        **options,
    )


@pytest.fixture
def ten_a_call(monkeypatch):
    """Ten steps in every compiled call, however quick they are."""
    monkeypatch.setattr(training, "FEWEST", 10)
    monkeypatch.setattr(training, "MOST", 10)


class Watching(Progress):
    """Remembers what is reported, and presses Ctrl-C when a step is reached."""

    def __init__(self, interrupt_at: float = math.inf):
        self.interrupt_at = interrupt_at
        self.reports: list[tuple[int, dict[str, float] | None]] = []

    @contextmanager
    def task(self, *, total: int, done: int = 0, title: str = "") -> Iterator[Report]:
        self.total, self.begun = total, done

        def report(done: int, terms: dict[str, float] | None) -> None:
            self.reports.append((done, terms))
            if done >= self.interrupt_at:
                raise KeyboardInterrupt

        yield report


def test_the_minimum_is_found():
    point, history = descend(schedule=Schedule(steps=400, learning_rate=0.1, validate_every=100))
    np.testing.assert_allclose(point.weight, TARGET, atol=0.05)
    np.testing.assert_allclose(point.bias, 0.0, atol=0.05)
    assert history.best_score < 0.005
    assert not history.interrupted


def test_validation_comes_at_its_steps_and_after_the_last():
    _, history = descend(schedule=Schedule(steps=40, validate_every=14))
    assert [entry["step"] for entry in history.entries] == [14, 28, 40]
    assert all(np.isfinite([entry["loss"], entry["validation"]]).all() for entry in history.entries)


def test_the_model_that_validated_best_is_returned_not_the_last():
    seen: list[np.ndarray] = []

    def validate(point: Point) -> float:
        seen.append(np.asarray(point.weight))
        return [3.0, 1.0, 2.0][len(seen) - 1]

    point, history = descend(validate=validate)
    assert (history.best_step, history.best_score) == (40, 1.0)
    np.testing.assert_array_equal(point.weight, seen[1])
    assert not np.array_equal(point.weight, seen[2])


def test_a_validation_that_is_not_a_number_loses_to_any_that_is():
    scores = iter([math.nan, 5.0, math.nan])
    _, history = descend(validate=lambda point: next(scores))
    assert (history.best_step, history.best_score) == (40, 5.0)


def test_running_averages_move_once_a_step():
    point, _ = descend(schedule=Schedule(steps=37, validate_every=100))
    assert point.visits == 37


def test_the_model_that_was_passed_in_stays_usable():
    before = Point()
    train(
        noisy_distance,
        before,
        jnp.asarray(TARGET),
        schedule=SCHEDULE,
        validate=distance,
        key=jax.random.key(0),
    )
    assert bits(before) == bits(Point())


class NoisyTarget(eqx.Module):
    """The target, drawn with noise."""

    target: jax.Array

    def draw(self, scale: float, key: jax.Array) -> jax.Array:
        return self.target - scale * jax.random.normal(key, (3,))


def test_a_step_is_given_what_was_drawn_for_it_with_a_key_of_its_own():
    def evaluate(point: Point, target: jax.Array, key: jax.Array) -> LossOutput:
        loss = ((point.weight - target) ** 2).sum()
        # What was drawn for a step, where it can be looked at.
        return LossOutput(loss, {"loss": loss}, eqx.tree_at(lambda point: point.bias, point, target[:2]))

    seen: list[np.ndarray] = []

    def validate(point: Point) -> float:
        seen.append(np.asarray(point.bias))
        return -float(len(seen))

    schedule = Schedule(steps=6, learning_rate=0.0, validate_every=1)
    data = NoisyTarget(jnp.asarray(TARGET))
    descend(evaluate, data=data, schedule=schedule, validate=validate, batch=0.1)
    expected = []
    for step in range(6):
        key, _ = jax.random.split(jax.random.fold_in(jax.random.key(0), step))
        expected.append(data.draw(0.1, key)[:2])
    np.testing.assert_allclose(seen, expected, rtol=1e-5)


def test_the_same_key_gives_the_same_numbers_and_another_key_others():
    first, again, other = (descend(seed=seed)[0] for seed in (0, 0, 1))
    assert bits(first) == bits(again)
    assert bits(first) != bits(other)


def test_progress_hears_of_every_stretch_and_of_validations():
    watching = Watching()
    descend(schedule=Schedule(steps=25, validate_every=20), progress=watching)
    done = [step for step, _ in watching.reports]
    assert (watching.total, watching.begun) == (25, 0)
    assert done == sorted(set(done))
    assert done[-1] == 25
    validated = [step for step, terms in watching.reports if terms and "validation" in terms]
    assert validated == [20, 25]


# Adam moves by exactly the learning rate under a slope that never changes.


def slope(point: Point, target: jax.Array, key: jax.Array) -> LossOutput:
    loss = point.weight.sum() + point.bias.sum()
    return LossOutput(loss, {"loss": loss}, point)


def way(schedule: Schedule) -> float:
    point, _ = descend(slope, schedule=schedule)
    return -float(point.weight[0])


def test_the_exponential_rate_falls_by_its_factor_every_step():
    schedule = Schedule(steps=30, learning_rate=0.01, decay="exponential", decay_rate=0.9)
    assert way(schedule) == pytest.approx(0.01 * (1 - 0.9**30) / 0.1, rel=1e-4)


def test_the_cosine_rate_warms_up_and_falls_to_what_remains():
    schedule = Schedule(steps=30, learning_rate=0.01, warm_up=10, decay_rate=0.05)
    warm_up = [0.001 + (0.01 - 0.001) * step / 10 for step in range(10)]
    cosine = [0.01 * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / 20))) for step in range(20)]
    assert way(schedule) == pytest.approx(sum(warm_up) + sum(cosine), rel=1e-4)


def test_a_loss_that_leaves_the_numbers_is_reported_with_step_and_setting(ten_a_call):
    def explosive(point: Point, target: jax.Array, key: jax.Array) -> LossOutput:
        loss = jnp.exp(-point.weight).sum()
        return LossOutput(
            loss,
            {"loss": loss, "steady": jnp.zeros(())},
            eqx.tree_at(lambda point: point.weight, point, -jnp.abs(point.weight) * 1e6),
        )

    with pytest.raises(TrainingDivergedError) as caught:
        descend(explosive, schedule=Schedule(steps=200, learning_rate=1e6, clip=None))
    message = str(caught.value)
    assert "training diverged at step 10: loss is no longer a number" in message
    assert "learning_rate (now 1e+06)" in message
    assert "clip (now None)" in message
    assert "steady" not in message


# Interruption and resumption


def test_an_interruption_returns_the_best_model_so_far():
    seen: list[np.ndarray] = []

    def validate(point: Point) -> float:
        seen.append(np.asarray(point.weight))
        return float(len(seen))  # worse every time

    point, history = descend(validate=validate, progress=Watching(interrupt_at=40))
    assert history.interrupted
    assert (history.best_step, len(history.entries)) == (20, 2)
    np.testing.assert_array_equal(point.weight, seen[0])


def test_an_interruption_before_any_validation_returns_the_model_as_it_is(ten_a_call):
    point, history = descend(progress=Watching(interrupt_at=10))
    assert history.interrupted
    assert history.entries == []
    assert point.visits == 10


def test_an_interruption_in_the_middle_of_a_step_leaves_a_usable_model(ten_a_call, monkeypatch):
    compiled = eqx.filter_jit

    def interrupted(function=None, **options):
        if function is None:
            return lambda function: interrupted(function, **options)
        run, calls = compiled(function, **options), []

        def call(*arguments):
            calls.append(run(*arguments))
            if len(calls) == 2:
                raise KeyboardInterrupt  # the step has run, and its result is lost
            return calls[-1]

        return call

    training._compile_steps.cache_clear()
    monkeypatch.setattr(training.eqx, "filter_jit", interrupted)
    point, history = descend()
    training._compile_steps.cache_clear()
    assert history.interrupted
    assert point.visits == 10
    assert np.isfinite(point.weight).all()


@pytest.mark.parametrize("interrupt_at", [20, 30, 40])
def test_a_resumed_run_ends_where_the_uninterrupted_one_does_to_the_bit(tmp_path, interrupt_at, ten_a_call):
    whole, expected = descend()
    path = tmp_path / "checkpoint.safetensors"
    _, history = descend(checkpoint=path, progress=Watching(interrupt_at))
    assert history.interrupted
    watching = Watching()
    resumed, history = descend(checkpoint=path, resume=True, progress=watching)
    assert watching.begun == interrupt_at - interrupt_at % 20
    assert bits(resumed) == bits(whole)
    assert history.entries == expected.entries
    assert (history.best_step, history.best_score) == (expected.best_step, expected.best_score)
    assert not history.interrupted


def test_quick_steps_are_many_to_a_call_and_slow_ones_few_which_changes_no_bit(monkeypatch):
    schedule = Schedule(steps=60, validate_every=60)
    descend(schedule=schedule)  # compiles
    watching = Watching()
    quick, _ = descend(schedule=schedule, progress=watching)
    assert [done for done, _ in watching.reports] == [1, 51, 60]
    monkeypatch.setattr(training, "PATIENCE", 0.0)
    watching = Watching()
    slow, _ = descend(schedule=schedule, progress=watching)
    assert [done for done, _ in watching.reports] == list(range(1, 61))
    assert bits(quick) == bits(slow)


def test_resuming_keeps_the_best_model_from_before_the_interruption(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    scores = iter([1.0, 2.0, 3.0])
    best, _ = descend(
        validate=lambda point: next(scores), checkpoint=path, progress=Watching(interrupt_at=40)
    )
    resumed, history = descend(validate=lambda point: next(scores), checkpoint=path, resume=True)
    assert history.best_step == 20
    assert bits(resumed) == bits(best)


def test_resuming_a_finished_run_trains_no_more(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    whole, _ = descend(checkpoint=path)
    watching = Watching()
    again, history = descend(checkpoint=path, resume=True, progress=watching)
    assert watching.reports == []
    assert bits(again) == bits(whole)
    assert len(history.entries) == 3


def test_without_resume_a_checkpoint_is_overwritten(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    first, _ = descend(checkpoint=path)
    watching = Watching()
    second, _ = descend(checkpoint=path, seed=1, progress=watching)
    assert watching.begun == 0
    assert bits(first) != bits(second)


def test_resuming_without_a_checkpoint_starts_from_the_beginning(tmp_path):
    point, _ = descend(checkpoint=tmp_path / "none.safetensors", resume=True)
    assert bits(point) == bits(descend()[0])


def test_resuming_under_other_circumstances_is_refused_by_what_differs(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    identity = {"settings": {"units": 8}, "data": "abc", "seed": 0}
    descend(checkpoint=path, identity=identity)
    for name, value in (("settings", {"units": 9}), ("data", "xyz"), ("seed", 1)):
        named = "units" if name == "settings" else name
        with pytest.raises(InputError, match=rf"checkpoint\.safetensors: cannot resume.*other {named};"):
            descend(checkpoint=path, resume=True, identity={**identity, name: value})
    with pytest.raises(InputError, match="other steps;"):
        descend(
            schedule=Schedule(steps=61, learning_rate=0.1, validate_every=20),
            checkpoint=path,
            resume=True,
            identity=identity,
        )


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.safetensors"
    save_tree, calls = training.save_tree, []

    def fail_later(*arguments: Any, **options: Any) -> None:
        calls.append(arguments)
        if len(calls) > 1:
            raise OSError("no space left on device")
        save_tree(*arguments, **options)

    monkeypatch.setattr(training, "save_tree", fail_later)
    with pytest.raises(OSError, match="no space"):
        descend(checkpoint=path)
    monkeypatch.undo()
    assert training.read_information(path)["step"] == 20
    resumed, _ = descend(checkpoint=path, resume=True)
    assert bits(resumed) == bits(descend()[0])


def test_a_history_is_json(tmp_path: Path):
    _, history = descend()
    assert json.loads(json.dumps(history.entries)) == history.entries


def test_trainings_of_one_kind_share_a_compiled_program():
    traced: list[int] = []

    def evaluate(point: Point, target: jax.Array, key: jax.Array) -> LossOutput:
        traced.append(1)
        return noisy_distance(point, target, key)

    descend(evaluate)
    once = len(traced)
    descend(evaluate, seed=1)
    assert len(traced) == once > 0
    # Rounds and searches have other learning rates.
    descend(evaluate, schedule=Schedule(steps=60, learning_rate=0.2, validate_every=20))
    assert len(traced) == once
    descend(evaluate, schedule=Schedule(steps=60, learning_rate=0.1, decay_rate=0.1, validate_every=20))
    assert len(traced) == 2 * once


# Mapped data

PLAN = Plan(batch=16, steps=3, at_start=0.5)


def far_from_rewards(point: Point, windows: Window, key: jax.Array) -> LossOutput:
    """How far a linear guess from observations is from the rewards."""
    guess = windows.observation[:, :-1] @ point.weight[:2] + point.weight[2]
    loss = (jnp.where(windows.valid, guess - windows.reward, 0.0) ** 2).mean()
    return LossOutput(loss, {"loss": loss}, point)


def learn_rewards(data: Sampler | MappedSampler, **options: Any) -> tuple[Point, History]:
    return train(
        far_from_rewards,
        Point(),
        data,
        schedule=Schedule(steps=35, learning_rate=0.1, validate_every=14),  # calls of 10, 4, 10, 4 and 7
        validate=lambda point: -float(point.weight[2]),
        key=jax.random.key(5),
        batch=PLAN,
        **options,
    )


def test_mapped_data_train_like_data_in_memory():
    log = EpisodeView.of(noise_logs((7, 1, 3, 12)))
    in_memory, expected = learn_rewards(Sampler.of(log))
    mapped, history = learn_rewards(MappedSampler(log, PLAN))
    np.testing.assert_allclose(mapped.weight, in_memory.weight, rtol=1e-5)
    assert [entry["loss"] for entry in history.entries] == pytest.approx(
        [entry["loss"] for entry in expected.entries], rel=1e-5
    )
    assert np.ptp([entry["loss"] for entry in expected.entries]) > 0.01


def test_training_on_mapped_data_is_resumed_to_the_bit(tmp_path):
    log, path = EpisodeView.of(noise_logs((7, 1, 3, 12))), tmp_path / "checkpoint.safetensors"
    whole, _ = learn_rewards(MappedSampler(log, PLAN))
    _, history = learn_rewards(MappedSampler(log, PLAN), checkpoint=path, progress=Watching(interrupt_at=20))
    assert (history.interrupted, len(history.entries)) == (True, 1)
    resumed, _ = learn_rewards(MappedSampler(log, PLAN), checkpoint=path, resume=True)
    assert bits(resumed) == bits(whole)
