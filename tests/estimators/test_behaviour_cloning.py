"""Cloning the behaviour policy: the right distribution, as likely as the true one, and said aloud."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from vlbm.data.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimators.behaviour_cloning import Behaviour, BehaviourCloning
from vlbm.estimators.importance import ImportanceSampling
from vlbm.suites.exact import cliff

CLONING = BehaviourCloning(units=(32,), steps=600, batch=128, learning_rate=1e-2)


def vectors(distribution: str, *, seed: int = 0) -> Episodes:
    """Actions around the sum of two observations, far from standardised, squashed or not."""
    random = np.random.default_rng(seed)
    observation = random.normal(size=(100 * 21, 2)) * [1.0, 50.0] + [3.0, -200.0]
    level = (observation - [3.0, -200.0]) @ [0.5, 0.01]
    raw = level[:, None] + np.array([0.5, 0.1]) * random.normal(size=(len(level), 2))
    action = np.tanh(1.5 * raw) if distribution == "tanh_gaussian" else 20 * raw + 5
    taken = np.delete(np.arange(100 * 21), np.arange(20, 100 * 21, 21))
    return Episodes(
        observation=observation.astype(np.float32),
        action=action[taken].astype(np.float32),
        reward=np.zeros(2000, np.float32),
        length=np.full(100, 20),
        terminated=np.zeros(100, bool),
    )


@pytest.fixture(scope="module")
def clones() -> dict[str, Behaviour]:
    return {name: CLONING.fit(vectors(name)) for name in ("gaussian", "tanh_gaussian")}


@pytest.mark.parametrize("name", ["gaussian", "tanh_gaussian"])
def test_the_distribution_that_made_the_actions_wins(clones, name):
    clone = clones[name]
    assert clone.distribution == name
    assert set(clone.scores) == {"gaussian", "tanh_gaussian"}
    assert clone.scores[name] == max(clone.scores.values())


def test_a_clone_is_nearly_as_likely_as_the_truth(clones):
    # The entropy of two independent normals with deviations 10 and 2.
    entropy = np.log(2 * np.pi * np.e) + np.log(10 * 2)
    assert clones["gaussian"].held_out == pytest.approx(-entropy, abs=0.15)
    assert clones["gaussian"].log_prob.mean() == pytest.approx(-entropy, abs=0.15)


def test_a_clone_takes_observations_as_they_are_logged(clones):
    fresh = vectors("gaussian", seed=1)
    seen = fresh.observation[fresh.observation_before]
    level = (seen - [3.0, -200.0]) @ [0.5, 0.01]
    acted = np.asarray(clones["gaussian"].policy.mean(seen))
    assert np.corrcoef(acted[:, 0], level)[0, 1] > 0.98
    assert np.abs(acted[:, 0] - (20 * level + 5)).mean() < 3.0
    drawn = np.asarray(clones["tanh_gaussian"].policy.sample(seen, key=jax.random.key(0)))
    assert (np.abs(drawn) <= 1).all()


def test_a_categorical_clone_finds_the_probabilities_and_says_so():
    system = cliff()
    logged = system.sample(system.behaviour, episodes=300, seed=0)
    unlogged = replace(logged, log_prob=None)
    evaluator = ImportanceSampling(clone_steps=600).fit(unlogged)
    assert np.abs(np.exp(evaluator.log_prob) - np.exp(logged.log_prob)).mean() < 0.05
    estimates = evaluator.evaluate(system.targets, discount=system.discount, actions="sample")
    (note,) = estimates.warnings[:1]
    assert "cloned by a categorical network" in note
    entropy = logged.log_prob.mean()
    said = float(note.split("held-out log-likelihood ")[1].split()[0])
    assert said == pytest.approx(entropy, abs=0.08)
    assert note in estimates.to_json()["warnings"]
    known = ImportanceSampling().fit(logged)
    assert not known.notes
    true = known.evaluate(system.targets, discount=system.discount, actions="sample")
    for cloned, row in zip(estimates, true, strict=True):
        assert abs(cloned.value - row.value) < 2 * row.standard_error


def test_actions_that_never_change_are_cloned_too():
    logged = vectors("gaussian")
    constant = replace(logged, action=np.full_like(logged.action, 7.0))
    clone = CLONING.fit(constant)
    assert np.isfinite(clone.log_prob).all()
    assert np.isfinite(list(clone.scores.values())).all()
    np.testing.assert_allclose(np.asarray(clone.policy.mean(logged.observation[:5])), 7.0, atol=0.1)


def test_a_single_episode_is_cloned_too():
    system = cliff()
    logged = replace(system.sample(system.behaviour, episodes=1, seed=0), log_prob=None)
    clone = BehaviourCloning(steps=20).fit(logged)
    assert np.isfinite(clone.log_prob).all()
    assert clone.distribution == "categorical"


def test_bad_settings_are_refused():
    for wrong in ({"steps": 0}, {"units": ()}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            BehaviourCloning(**wrong)
