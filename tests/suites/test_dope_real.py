"""Where the real files are at hand: policies load, earn what was published, and are ranked from data."""

from __future__ import annotations

import numpy as np
import pytest
from dope_files import write_d4rl

from vlbm.results.metrics import (
    absolute_error,
    dope_regret,
    normalised_absolute_error,
    rank_correlation,
    regret,
)
from vlbm.suites import dope
from vlbm.suites.dope.paths import make_search_path
from vlbm.suites.dope.targets import load_targets
from vlbm.suites.simulate import simulate

ENVIRONMENTS = ("ant", "halfcheetah", "hopper", "walker2d", "pen", "door", "hammer", "relocate")
SIMULATED = ("halfcheetah", "hopper", "walker2d")


@pytest.fixture
def files(shared, monkeypatch, tmp_path):
    monkeypatch.delenv("VLBM_DOPE", raising=False)
    monkeypatch.setenv("VLBM_CACHE", str(tmp_path / "cache"))
    return shared / "dope"


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_all_11_real_policies_of_an_environment_load(files, tmp_path, environment):
    known = dope.find_problem(f"dope/{environment}-expert")
    data = write_d4rl(tmp_path / "data.hdf5", observations=known.observations, actions=known.actions)
    task = dope.load_task(known.name, data=data, policies=files)
    assert list(task.policies) == list(task.truth)
    assert len(task.policies) == 11
    for policy in task.policies.values():
        assert (policy.observation_size, policy.action_size) == (known.observations, known.actions)


def assert_earns_its_truth(files, environment: str, number: int, *, episodes: int) -> None:
    """Mean actions in version 4 earn what was published: within 8 % and the noise of few episodes."""
    known = dope.find_problem(f"dope/{environment}-expert")
    policies = load_targets(known, make_search_path(files), observations=known.observations)
    name = list(policies)[number]
    assert known.simulator is not None
    played = simulate(
        known.simulator, policies[name], seed=0, horizon=known.horizon, episodes=episodes, actions="mean"
    )
    returns, true = played.returns(known.truth().discount), known.truth().values[name]
    noise = returns.std(ddof=1) / np.sqrt(episodes)
    assert abs(returns.mean() - true) < 0.08 * abs(true) + 3 * noise, f"{name}: {returns.mean()}, not {true}"


@pytest.mark.parametrize(("environment", "number"), [("halfcheetah", 6), ("hopper", 6), ("walker2d", 8)])
def test_real_policies_earn_their_published_discounted_return(files, environment, number):
    pytest.importorskip("mujoco")
    assert_earns_its_truth(files, environment, number, episodes=4)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(11))
@pytest.mark.parametrize("environment", SIMULATED)
def test_every_real_policy_earns_its_published_discounted_return(files, environment, number):
    pytest.importorskip("mujoco")
    assert_earns_its_truth(files, environment, number, episodes=10)


def test_door_human_goes_from_demonstrations_to_metrics(files, monkeypatch):
    from vlbm import VLBM

    monkeypatch.setenv("VLBM_DOPE", str(files))
    assert dope.make_entry("dope/door-human").available
    task = dope.load_task("dope/door-human")
    assert (task.episodes.count, task.episodes.steps) == (25, 6729)
    assert (task.discount, task.horizon, len(task.policies)) == (1.0, 200, 11)
    assert np.abs(task.episodes.action).max() == 1.0
    estimator = VLBM(
        branches=2,
        latents=4,
        units=16,
        head_units=(16,),
        batch=32,
        steps=30,
        warm_up=5,
        validate_every=15,
        models=1,
    )
    estimates = estimator.fit(task.episodes, seed=0).evaluate(
        task.policies, discount=task.discount, horizon=task.horizon, episodes=4, actions="sample"
    )
    estimated, true = estimates.values, np.array([task.truth[name] for name in task.policies])
    assert [row.policy for row in estimates] == list(task.policies)
    for metric in (rank_correlation, regret, dope_regret, absolute_error, normalised_absolute_error):
        assert np.isfinite(metric(estimated, true))
