"""Kept programs give what the function itself gives, to the bit, and are never in the way."""

from __future__ import annotations

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm import tracing, training
from vlbm.episodes import Episodes, from_padded
from vlbm.estimators.worlds.vlbm import VLBM
from vlbm.tracing import kept


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("VLBM_CACHE", str(tmp_path))
    return tmp_path / "traced"


@pytest.fixture
def traced(monkeypatch) -> list[str]:
    """Grows by an entry for every program that is traced to be kept."""
    times: list[str] = []
    trace = tracing._traced

    def counting(*arguments):
        times.append("traced")
        return trace(*arguments)

    monkeypatch.setattr(tracing, "_traced", counting)
    return times


class Walk:
    """A function that counts how often Python runs it."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, fixed, moving):
        self.runs += 1
        key, length = fixed
        moved = {"place": moving["place"] + length * jax.random.normal(key, moving["place"].shape)}
        return moved, {"mean": moved["place"].mean(), "count": jnp.int32(2)}


def arguments(size: int = 3):
    return (jax.random.key(1), jnp.float32(0.5)), {"place": jnp.arange(float(size))}


def assert_same(first, second) -> None:
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_a_kept_program_gives_the_same_and_is_not_traced_again(directory):
    cold, warm = Walk(), Walk()
    expected = eqx.filter_jit(Walk())(*arguments())
    assert_same(kept(eqx.filter_jit(cold), "walk")(*arguments()), expected)
    assert cold.runs == 1
    assert len(list(directory.iterdir())) == 1
    assert_same(kept(eqx.filter_jit(warm), "walk")(*arguments()), expected)
    assert warm.runs == 0


def test_other_settings_or_shapes_have_a_program_of_their_own(directory):
    walk = Walk()
    for settings, size in (("walk", 3), ("walk", 4), ("stroll", 3)):
        moved, _ = kept(eqx.filter_jit(walk), settings)(*arguments(size))
        assert moved["place"].shape == (size,)
    assert len(list(directory.iterdir())) == 3


def test_one_function_takes_arguments_of_several_shapes():
    program = kept(eqx.filter_jit(Walk()), "walk")
    for size in (3, 4, 3):
        assert_same(program(*arguments(size)), eqx.filter_jit(Walk())(*arguments(size)))


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", None])
def test_a_broken_file_is_ignored_and_replaced(directory, content):
    expected = kept(eqx.filter_jit(Walk()), "walk")(*arguments())
    (file,) = directory.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-100] if content is None else content)
    again = Walk()
    assert_same(kept(eqx.filter_jit(again), "walk")(*arguments()), expected)
    assert again.runs == 1
    last = Walk()
    kept(eqx.filter_jit(last), "walk")(*arguments())
    assert last.runs == 0


def test_settings_that_cannot_be_told_in_full_keep_nothing(directory):
    expected = eqx.filter_jit(Walk())(*arguments())
    assert_same(kept(eqx.filter_jit(Walk()), lambda: None)(*arguments()), expected)
    assert not directory.exists()


def test_leaves_that_are_no_arrays_of_jax_keep_nothing(directory):
    fixed, moving = arguments()
    moved, _ = kept(eqx.filter_jit(Walk()), "walk")(fixed, {"place": np.asarray(moving["place"])})
    assert_same(moved, eqx.filter_jit(Walk())(fixed, moving)[0])
    assert not directory.exists()


def test_an_empty_name_of_the_cache_turns_it_off(directory, monkeypatch):
    monkeypatch.setenv("VLBM_CACHE", "")
    walk = Walk()
    kept(eqx.filter_jit(walk), "walk")(*arguments())
    assert walk.runs == 1
    assert not directory.exists()


def test_a_place_that_cannot_be_written_to_is_no_failure(directory):
    directory.write_text("a file where the directory would be")
    assert_same(kept(eqx.filter_jit(Walk()), "walk")(*arguments()), eqx.filter_jit(Walk())(*arguments()))


def test_a_function_that_fails_says_so_itself():
    def failing(fixed, moving):
        raise ZeroDivisionError("in the function")

    with pytest.raises(ZeroDivisionError, match="in the function"):
        kept(eqx.filter_jit(failing), "failing")(*arguments())


def test_programs_that_call_back_or_solve_equations_are_not_kept(directory):
    def calling(fixed, moving):
        jax.debug.callback(lambda: None)
        return moving, {}

    def solving(fixed, moving):
        return {"place": jnp.linalg.solve(jnp.eye(3) * 2, moving["place"])}, {}

    for function in (calling, solving):
        assert_same(kept(eqx.filter_jit(function), "f")(*arguments()), eqx.filter_jit(function)(*arguments()))
    assert not directory.exists()


def test_programs_not_used_for_longest_make_room(directory, monkeypatch):
    monkeypatch.setattr(tracing, "MOST", 2)
    kept(eqx.filter_jit(Walk()), "first")(*arguments())
    (first,) = directory.iterdir()
    for settings in ("second", "first", "third"):
        kept(eqx.filter_jit(Walk()), settings)(*arguments())
    assert len(list(directory.iterdir())) == 2
    assert first.exists()


def logged() -> Episodes:
    random = np.random.default_rng(0)
    return from_padded(
        observation=random.normal(size=(6, 13, 2)),
        action=random.normal(size=(6, 12, 1)),
        reward=random.normal(size=(6, 12)),
        length=np.full(6, 12),
        terminated=np.zeros(6, bool),
    )


def fitted() -> list[bytes]:
    training._advancing.cache_clear()  # as in a new process
    small = VLBM(
        branches=2, latents=2, units=4, head_units=(4,), batch=8, steps=20, validate_every=10, models=2
    )
    evaluator = small.fit(logged(), seed=3)
    entries = [repr(history.entries).encode() for history in evaluator.histories]
    return entries + [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(evaluator.worlds)]


@pytest.mark.slow
def test_a_fit_is_the_same_to_the_bit_from_a_cold_and_a_warm_start_and_without_a_cache(traced, monkeypatch):
    cold = fitted()
    assert traced == ["traced"]
    warm = fitted()
    assert traced == ["traced"]
    monkeypatch.setenv("VLBM_CACHE", "")
    assert cold == warm == fitted()
