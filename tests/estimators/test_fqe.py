"""Fitted Q evaluation: exact where the Bellman equation can be solved by hand, and honest where it breaks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

from systems import Interrupting, blind
from vlbm.data.episodes import Episodes
from vlbm.errors import InputError, TrainingDivergedError
from vlbm.estimand import Estimand
from vlbm.estimators.fqe import FQE, Critics, bellman_loss, smaller_q
from vlbm.estimators.shared_cache import no_cache
from vlbm.estimators.transitions import Problem
from vlbm.policies import FunctionPolicy
from vlbm.progress import silent

# Networks as small as can be: everything observed is the same, so values are a few constants.
TINY = FQE(units=(8,), layer_norm=False, rounds=3, steps=150, learning_rate=1e-2, target_rate=0.2, batch=64)
LENGTH = 5


def constant(*, terminated: bool, episodes: int = 100) -> Episodes:
    """Action 0 pays 0 and action 1 pays 2, both are tried as often, and nothing is ever seen."""
    action = np.tile([0, 1], episodes * LENGTH)[: episodes * LENGTH]
    return Episodes(
        observation=np.zeros((episodes * (LENGTH + 1), 1), np.float32),
        action=action,
        reward=2.0 * action.astype(np.float32),
        length=np.full(episodes, LENGTH),
        terminated=np.full(episodes, terminated),
        n_actions=2,
    )


def evaluate(episodes: Episodes, policies: Any, settings: FQE = TINY, **options: Any):
    options = {"discount": 0.9, "horizon": math.inf, "actions": "sample", **options}
    return settings.fit(episodes).evaluate(policies, **options)


def test_a_cut_off_episode_goes_on_in_value_and_one_that_ended_does_not():
    policy = blind(0.5, 0.5)
    (endless,) = evaluate(constant(terminated=False), policy)
    assert endless.value == pytest.approx(1 / (1 - 0.9), rel=0.02)
    # One step in five is the last.
    (ending,) = evaluate(constant(terminated=True), policy)
    assert ending.value == pytest.approx(1 / (1 - 0.9 * 4 / 5), rel=0.02)
    assert endless.warnings == ending.warnings == ()


def test_with_a_horizon_nothing_is_earned_after_it_whatever_the_discount():
    policy = blind(0.5, 0.5)
    for discount, expected in ((0.9, 1 + 0.9 + 0.81), (1.0, 3.0)):
        (found,) = evaluate(constant(terminated=False), policy, discount=discount, horizon=3)
        assert found.value == pytest.approx(expected, rel=0.05)
    with pytest.raises(InputError, match="discount 1: without a horizon"):
        evaluate(constant(terminated=False), policy, discount=1.0)


def test_a_horizon_that_no_episode_reaches_is_warned_of():
    estimates = evaluate(constant(terminated=False), blind(0.5, 0.5), horizon=20)
    assert any("no logged episode is as long as the horizon of 20" in text for text in estimates.warnings)


def test_policies_act_by_their_mean_or_by_sampling_as_asked():
    policy = blind(0.3, 0.7)
    (mean,) = evaluate(constant(terminated=False), policy, actions="mean")
    (sampled,) = evaluate(constant(terminated=False), policy)
    # The likeliest id always pays 2, a draw pays 1.4 on average.
    assert mean.value == pytest.approx(2.0 / (1 - 0.9), rel=0.06)  # the edge of the feasible range
    assert sampled.value == pytest.approx(1.4 / (1 - 0.9), rel=0.03)


def critics_that_differ(twin: bool) -> tuple[Critics, Any]:
    """Online and target networks with other weights, and a batch of logged transitions."""
    problem = Problem(constant(terminated=False), Estimand(0.9, None, "sample"))
    data = problem.transitions({"it": blind(0.3, 0.7)}, draws=1, key=jax.random.key(0))
    settings = replace(TINY, twin=twin)
    online, target = (
        Critics.make(problem, data, settings, key=jax.random.key(seed)).online for seed in (1, 2)
    )
    # Weights alone say nothing where all observations are zero: biases differ.
    online, target = (
        eqx.tree_at(
            lambda networks: networks.mlp.last.bias,
            networks,
            jax.random.normal(key, networks.mlp.last.bias.shape),
        )
        for networks, key in zip((online, target), jax.random.split(jax.random.key(3)), strict=True)
    )
    scale = Critics.make(problem, data, settings, key=jax.random.key(0))
    return Critics(online, target, scale.offset, scale.unit), data.draw(16, jax.random.key(4))


@pytest.mark.parametrize("twin", [False, True])
def test_goals_come_from_the_target_network_and_of_twins_from_the_smaller(twin):
    critics, batch = critics_that_differ(twin)
    offset, unit = float(critics.offset), float(critics.unit)

    def outputs(networks: Any) -> np.ndarray:
        """What every twin says of both actions; observations are all the same."""
        return np.asarray(networks.mlp.last.bias)[0]

    # The smaller one of twins, for each action by itself.
    future = offset + unit * outputs(critics.target).min(axis=0) @ np.array([0.3, 0.7])
    goal = np.clip(np.asarray(batch.reward) + 0.9 * future, np.asarray(batch.low), np.asarray(batch.high))
    predicted = outputs(critics.online) @ np.asarray(batch.a).T
    expected = np.square(predicted - (goal - offset) / unit).mean(axis=-1).sum()
    evaluated = bellman_loss(critics, batch, jax.random.key(0), 0.25)
    assert float(evaluated.loss) == pytest.approx(expected, rel=1e-5)
    followed = outputs(critics.target) + 0.25 * (outputs(critics.online) - outputs(critics.target))
    np.testing.assert_allclose(outputs(evaluated.model.target), followed, rtol=1e-5)


def test_target_networks_get_no_gradient():
    critics, batch = critics_that_differ(twin=True)
    gradient = eqx.filter_grad(lambda critics: bellman_loss(critics, batch, jax.random.key(0), 0.1).loss)(
        critics
    )
    fixed = (gradient.target, gradient.offset, gradient.unit)
    assert all(not leaf.any() for leaf in jax.tree.leaves(fixed))
    assert any(leaf.any() for leaf in jax.tree.leaves(gradient.online))


def test_of_twins_the_smaller_counts_action_by_action_so_that_v_is_the_mean_of_q():
    critics, batch = critics_that_differ(twin=True)
    twins = jax.tree.map(lambda leaf: leaf[0], critics.online)
    # The twins must disagree about which action is better, or nothing is tested.
    bias = np.array([[0.0, 1.0], [1.0, 0.0]], np.float32)
    twins = eqx.tree_at(lambda twins: twins.mlp.last.bias, twins, jax.numpy.asarray(bias))
    both = [np.asarray(smaller_q(twins, batch.s, np.tile(np.eye(2)[a], (16, 1)))) for a in (0, 1)]
    np.testing.assert_allclose(both, 0.0, atol=1e-6)
    state = np.asarray(smaller_q(twins, batch.s, np.tile([0.3, 0.7], (16, 1))))
    np.testing.assert_allclose(state, 0.3 * both[0] + 0.7 * both[1], atol=1e-6)


def test_a_policy_that_has_settled_is_not_trained_on_and_one_that_has_not_is_warned_of():
    (settled,) = evaluate(constant(terminated=False), blind(0.5, 0.5))
    assert settled.warnings == ()
    hasty = replace(TINY, target_rate=0.3, steps=60, rounds=2)
    (unsettled,) = evaluate(constant(terminated=False), blind(0.1, 0.9), hasty, discount=0.99)
    assert any("Q has not settled" in text for text in unsettled.warnings)
    assert unsettled.details["last_change"] > 0


def test_networks_that_hardly_learn_are_warned_of_though_their_values_stand_still():
    still = replace(TINY, learning_rate=1e-6, steps=20, rounds=2)
    (row,) = evaluate(constant(terminated=False), blind(0.1, 0.9), still)
    assert any("Q does not solve its equation" in text for text in row.warnings)
    assert row.lower <= 1.8 / (1 - 0.9) <= row.upper + 0.5


def test_actions_that_were_never_tried_are_warned_of():
    logs = constant(terminated=False)
    always = replace(logs, action=np.zeros(logs.steps, int), reward=np.ones(logs.steps, np.float32))
    (known,) = evaluate(always, blind(0.99, 0.01), actions="mean")
    (unknown,) = evaluate(always, blind(0.01, 0.99), actions="mean")
    assert not any("never tried" in text for text in known.warnings)
    assert any("never tried" in text for text in unknown.warnings)
    assert (known.details["outside_the_log"], unknown.details["outside_the_log"]) == (0.0, 1.0)


def test_training_that_diverges_says_what_to_do():
    with pytest.raises(TrainingDivergedError, match="learning_rate"):
        evaluate(constant(terminated=False), blind(0.5, 0.5), replace(TINY, learning_rate=1e38))


def test_ctrl_c_keeps_what_was_fitted_so_far_and_says_so():
    estimates = evaluate(constant(terminated=False), blind(0.5, 0.5), progress=Interrupting(50))
    assert estimates.interrupted
    assert any("training was interrupted" in text for text in estimates.warnings)
    assert np.isfinite(estimates[0].value)


def test_values_stay_within_what_can_be_earned():
    logs = constant(terminated=False)
    (row,) = evaluate(logs, blind(0.01, 0.99), actions="mean")
    assert 0.0 <= row.value <= 2.0 / (1 - 0.9) + 1e-4


def test_the_value_is_the_mean_of_v_over_the_beginnings():
    logs = constant(terminated=True)
    problem = Problem(logs, Estimand(0.9, None, "sample"))
    fitted = TINY.train(problem, {"it": blind(0.5, 0.5)}, seed=0, progress=silent, cache=no_cache)
    (row,) = evaluate(logs, {"it": blind(0.5, 0.5)})
    assert row.value == pytest.approx(fitted.v[0, logs.first_observation].mean(), rel=1e-6)


def test_a_policy_that_gives_no_action_is_named():
    broken = FunctionPolicy(lambda observation: np.full(len(observation), np.nan))
    with pytest.raises(InputError, match="policy 'broken'"):
        evaluate(constant(terminated=False), {"broken": broken}, actions="mean")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("steps", 0), ("rounds", 0), ("units", ()), ("target_rate", 0.0), ("learning_rate", -1.0), ("draws", 0)],
)
def test_bad_settings_are_named(setting, value):
    with pytest.raises(InputError, match=setting):
        FQE(**{setting: value})
