"""The one-step world models from fit to estimates, on systems whose answers are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from systems import bits
from vlbm.data.episodes import Episodes, from_padded
from vlbm.errors import InputError
from vlbm.estimators.registry import parse_settings
from vlbm.estimators.world_models.autoregressive import AutoRegressive
from vlbm.estimators.world_models.evaluator import WorldEvaluator
from vlbm.estimators.world_models.feedforward import FeedForward
from vlbm.estimators.world_models.transition import TransitionModel
from vlbm.policies import TracedPolicy
from vlbm.suites.exact import SYSTEMS, true_values
from vlbm.worlds.base import World

TINY: dict[str, Any] = {
    "members": 2,
    "units": (64, 64),
    "steps": 600,
    "learning_rate": 5e-3,
    # Only in the end: where noise decides where a system goes, means foretell too little to choose by.
    "validate_every": 600,
    "sampling": "all",
}
SETTINGS: dict[str, TransitionModel] = {
    "ff": FeedForward(**TINY),
    # Alone, so that the consensus is free to see as much noise as there is; it takes longer to learn so.
    "ar": AutoRegressive(
        **{**TINY, "steps": 1800, "validate_every": 1800}, masked_units=2, member_weight=0.0
    ),
}
METHODS = tuple(SETTINGS)
LINEAR = SYSTEMS["linear"]()
HORIZON = 8


def with_terminations(count: int, *, seed: int) -> Episodes:
    """s' = (s + id - 1 + noise) / 2; after a step the system ends with 0.3 where s' > 0, else with 0.02."""
    random = np.random.default_rng(seed)
    state = random.normal(size=count)
    states, actions, rewards, ends = [state], [], [], []
    for _ in range(HORIZON):
        action = random.integers(3, size=count)
        state = 0.5 * (state + action - 1 + random.normal(size=count))
        states.append(state)
        actions.append(action)
        rewards.append(state + 1.0)
        ends.append(random.uniform(size=count) < np.where(state > 0, 0.3, 0.02))
    ended = np.stack(ends, axis=1)
    return from_padded(
        observation=np.stack(states, axis=1).astype(np.float32)[..., None],
        action=np.stack(actions, axis=1).astype(np.int32),
        reward=np.stack(rewards, axis=1).astype(np.float32),
        length=np.where(ended.any(axis=1), ended.argmax(axis=1) + 1, HORIZON),
        terminated=ended.any(axis=1),
        n_actions=3,
    )


class Always(TracedPolicy):
    """The same id everywhere."""

    action: jax.Array

    observation_size = 1
    action_size = 3
    discrete = True

    def mean(self, observation):
        return jnp.broadcast_to(self.action, observation.shape[:-1])

    def sample(self, observation, *, key):
        return self.mean(observation)


@pytest.fixture(scope="module", params=METHODS)
def fitted(request, tmp_path_factory) -> WorldEvaluator:
    return SETTINGS[request.param].fit(logs(), seed=0, directory=folder(tmp_path_factory, request.param))


def folder(tmp_path_factory, method: str) -> Path:
    """Where a method's checkpoints are."""
    place = tmp_path_factory.getbasetemp() / method
    place.mkdir(exist_ok=True)
    return place


def logs() -> Episodes:
    return LINEAR.sample(LINEAR.behaviour, episodes=800, seed=0)


def evaluate(evaluator: WorldEvaluator, **options: Any):
    given = {"discount": LINEAR.discount, "horizon": LINEAR.horizon, "episodes": 300, "actions": "sample"}
    return evaluator.evaluate(LINEAR.targets, **{**given, **options})


def test_values_on_a_linear_system_are_close_to_the_exact_ones(fitted):
    truth = true_values(LINEAR, discount=LINEAR.discount, horizon=LINEAR.horizon)
    estimates = evaluate(fitted, episodes=4000)
    spread = np.ptp(list(truth.values()))
    for row in estimates:
        # Returns spread so widely that luck alone is worth a tenth of it.
        assert abs(row.value - truth[row.policy]) < 0.2 * spread, (row.policy, row.value, truth[row.policy])


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(fitted):
    first, again, other = (evaluate(fitted, seed=seed) for seed in (0, 0, 1))
    assert bits([row.returns for row in first]) == bits([row.returns for row in again])
    assert not set(bits([row.returns for row in first])) & set(bits([row.returns for row in other]))


def test_a_checkpoint_can_be_taken_up_again_by_the_fit_it_belongs_to(fitted, tmp_path_factory):
    place = folder(tmp_path_factory, fitted.method)
    resumed = fitted.settings.fit(logs(), seed=0, directory=place, resume=True)
    assert bits(resumed.worlds) == bits(fitted.worlds)
    assert resumed.histories[0].entries == fitted.histories[0].entries
    with pytest.raises(InputError, match=r"cannot resume.* other seed"):
        fitted.settings.fit(logs(), seed=1, directory=place, resume=True)


def test_saved_and_loaded_it_gives_the_same_numbers_to_the_bit(fitted, tmp_path):
    fitted.save(tmp_path)
    loaded = WorldEvaluator.load(tmp_path, lambda method: type(SETTINGS[method]))
    assert loaded.settings == fitted.settings
    assert loaded.method == fitted.settings.method
    assert bits(loaded.worlds) == bits(fitted.worlds)
    assert bits([row.returns for row in evaluate(loaded)]) == bits([row.returns for row in evaluate(fitted)])


def test_imagining_otherwise_needs_no_new_fit(fitted):
    means = evaluate(fitted.with_settings(sampling="none"))
    assert means.settings["sampling"] == "none"
    # Costs are quadratic: without the system's noise they are lower.
    assert (means.values > evaluate(fitted).values + 0.1).all()


def test_a_world_that_leaves_the_numbers_is_reported_and_clipping_keeps_it_among_them(fitted):
    far = eqx.tree_at(lambda world: world.change.scale, fitted.model, jnp.full(2, 3e38))
    broken = replace(fitted, worlds=(far,))
    with pytest.raises(InputError, match=r"not finite under policy|returned actions that are not finite"):
        evaluate(broken.with_settings(clip_margin=None))
    assert all(np.isfinite(row.returns).all() for row in evaluate(broken))


@pytest.mark.parametrize("method", METHODS)
def test_terminations_are_learnt_for_ids_as_actions(method):
    episodes = with_terminations(2000, seed=1)
    evaluator = SETTINGS[method].fit(episodes, seed=0)
    assert evaluator.model.terminates
    random = np.random.default_rng(2)
    state, action, draws = random.normal(size=300), random.integers(3, size=300), 64
    many = [np.repeat(part, draws, axis=0) for part in (state, action)]

    @eqx.filter_jit
    def ending(world: World, state: jax.Array, action: jax.Array) -> jax.Array:
        def one(state: jax.Array, action: jax.Array, key: jax.Array) -> jax.Array:
            reset_key, step_key = jax.random.split(key)
            begun = world.reset(state[None], world.draw_noise(reset_key))
            return world.step(begun, action, world.draw_noise(step_key))[1].termination

        return jax.vmap(one)(state, action, jax.random.split(jax.random.key(0), len(state)))

    chance = ending(evaluator.model, jnp.asarray(many[0], jnp.float32), jnp.asarray(many[1], jnp.int32))
    learnt = np.asarray(chance).reshape(-1, draws).mean(axis=1)
    truth = 0.02 + 0.28 * norm.cdf(state + action - 1)
    # A model that knew only the average would be off by 0.08.
    assert np.abs(learnt - truth).mean() < 0.03
    assert np.corrcoef(learnt, truth)[0, 1] > 0.95
    low, high = evaluator.evaluate({"low": Always(jnp.array(0)), "high": Always(jnp.array(2))}, discount=1.0)
    assert low.length > high.length + 1


@pytest.mark.parametrize("kind", [FeedForward, AutoRegressive])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"members": 0}, "members=0: must be at least 1"),
        ({"units": ()}, "give at least one hidden layer"),
        ({"held_out": 1.0}, "held_out=1.0: must lie between 0 and 1"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0: must be positive"),
        ({"scale_floor": 0.0}, "scale_floor=0.0: must be positive"),
    ],
)
def test_settings_that_cannot_work_are_refused(kind, wrong, message):
    with pytest.raises(InputError, match=message):
        kind(**wrong)


def test_settings_are_read_from_text():
    parsed = parse_settings(
        FeedForward, ["ensemble=episode", "units=64,32", "sampling=all", "clip_margin=none"]
    )
    assert FeedForward(**parsed).imagination.ensemble == "episode"
    assert (parsed["units"], parsed["clip_margin"]) == ((64, 32), None)
    for wrong in ("ensemble=all", "sampling=latents", "start=prior"):
        with pytest.raises(InputError, match=wrong.split("=")[0]):
            parse_settings(FeedForward, [wrong])
    for wrong in ({"masked_units": 0}, {"member_weight": -1.0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            AutoRegressive(**wrong)


def unfinished(rewards_at_the_end: bool) -> Episodes:
    """Twelve cut-off episodes of twelve steps without their final observations."""
    last = np.arange(144) % 12 == 11
    return Episodes.from_arrays(
        np.random.default_rng(0).normal(size=(144, 2)),
        np.random.default_rng(1).normal(size=(144, 1)),
        last if rewards_at_the_end else np.ones(144),
        np.zeros(144, bool),
        last,
    )


def test_a_world_learns_from_what_is_known_and_says_what_it_leaves_out():
    small = FeedForward(members=1, units=(4,), steps=2, validate_every=2)
    fitted = small.fit(unfinished(False), seed=0)
    assert any("leaves these steps out, with 8.3% of the reward" in note for note in fitted.notes)
    assert fitted.space.longest == 12  # the question stays that of the whole log


def test_a_world_is_not_learnt_where_the_reward_lies_in_steps_of_unknown_outcome():
    with pytest.raises(InputError, match=r"12 of 12 episodes .* 100% of the reward"):
        SETTINGS["ff"].fit(unfinished(True), seed=0)
