"""The gym suite: what is committed is complete and true, and what is made is the same every time."""

from __future__ import annotations

import numpy as np
import pytest

from vlbm.errors import InputError
from vlbm.suites import find_entry, gym, load_task, task_names
from vlbm.suites.cache import checksum, data_path
from vlbm.suites.simulate import simulate

each_environment = pytest.mark.parametrize("environment", gym.ENVIRONMENTS)


@pytest.fixture
def simulator(tmp_path, monkeypatch):
    """An empty cache, and a reason to skip where nothing can be simulated."""
    pytest.importorskip("gymnasium", reason="the extra 'gym' is not installed")
    pytest.importorskip("mujoco", reason="the extra 'gym' is not installed")
    monkeypatch.setenv("VLBM_CACHE", str(tmp_path))


def true_values(environment: str, *, actions: str = "mean", kind: str = "discounted") -> np.ndarray:
    return np.array(list(gym.read_truth(environment, actions=actions, kind=kind).values()))


def test_there_are_five_data_sets_for_each_of_five_environments():
    assert len(gym.list_names()) == 25
    assert {"hopper-medium-replay", "ant-random", "pendulum-expert"} <= set(gym.list_names())
    assert set(gym.list_names()) < set(task_names())


@each_environment
def test_eleven_policies_fit_their_environment(environment):
    facts, policies = gym.read_facts(environment), gym.load_target_policies(environment)
    assert list(policies) == [f"policy_{number:02d}" for number in range(11)]
    assert list(facts["policies"]) == list(policies)
    for policy in policies.values():
        assert policy.observation_size == facts["observation_size"]
        assert policy.action_size == facts["action_size"]


@each_environment
def test_true_returns_are_spread_from_poor_to_excellent(environment):
    values = np.sort(true_values(environment))
    assert np.diff(values).max() < 0.3 * (values[-1] - values[0])
    # Evenly enough: no two fifths of the range stand empty.
    assert (np.histogram(values, bins=5)[0] > 0).sum() >= 4


@each_environment
def test_true_returns_come_from_at_least_a_hundred_episodes_and_say_how_sure_they_are(environment):
    facts = gym.read_facts(environment)
    assert facts["episodes_per_truth"] >= 100
    span = np.ptp(true_values(environment))
    for policy in facts["policies"].values():
        for actions in ("mean_actions", "sampled_actions"):
            for kind in ("discounted", "undiscounted"):
                assert policy[actions][kind]["standard_error"] > 0
            assert policy[actions]["discounted"]["standard_error"] < 0.1 * span


@each_environment
def test_logging_policies_come_from_another_training_run_than_the_targets(environment):
    facts = gym.read_facts(environment)
    assert facts["logging_seed"] not in {policy["training_seed"] for policy in facts["policies"].values()}


@each_environment
def test_every_data_set_has_its_logging_policies(environment):
    facts = gym.read_facts(environment)
    for dataset in gym.DATASETS:
        parts = gym.recipe_parts(facts, dataset)
        assert sum(part.share for part in parts) == pytest.approx(1)
        for part in parts:
            policy = gym.load_logging_policy(environment, part.policy)
            assert policy.observation_size == facts["observation_size"]
    assert len(gym.recipe_parts(facts, "medium-replay")) >= 4
    assert facts["logging"]["medium"] != facts["logging"]["expert"]


@pytest.mark.parametrize("name", ["pendulum-medium-expert", "hopper-random"])
def test_the_same_seed_gives_the_same_checksum_and_another_does_not(name, simulator):
    sums = []
    for seed in (0, 0, 1):
        gym.load_data(name, steps=300, seed=seed)
        path = data_path(name, steps=300, seed=seed)
        sums.append(checksum(path))
        path.unlink()
    assert sums[0] == sums[1] != sums[2]


def test_data_are_made_once_and_then_found(simulator, monkeypatch):
    assert not gym.make_entry("pendulum-random", steps=250).available
    first = gym.load_data("pendulum-random", steps=250)
    assert gym.make_entry("pendulum-random", steps=250).available
    monkeypatch.setattr(gym, "make_data", None)
    assert gym.load_data("pendulum-random", steps=250).fingerprint() == first.fingerprint()


def test_a_mixture_has_its_shares_and_keeps_log_probabilities(simulator):
    mixed = gym.make_data("pendulum-medium-expert", steps=800, seed=0)
    assert mixed.count == 4
    assert mixed.log_prob is not None
    assert np.isfinite(mixed.log_prob).all()
    returns = mixed.returns()
    assert returns[2:].mean() > returns[:2].mean()


def test_a_task_has_data_policies_and_truth_of_one_shape(simulator):
    task = load_task("hopper-random", steps=100)
    assert task.episodes.observation_size == 11
    assert task.episodes.action_size == 3
    assert set(task.truth) == set(task.policies)
    assert task.discount == 0.995
    assert task.horizon == 1000
    assert not task.regenerated


def test_entries_say_what_a_task_is_without_making_it(simulator):
    entry = find_entry("ant-medium-replay")
    assert (entry.observation_size, entry.action_size, entry.policies) == (27, 8, 11)
    assert (entry.environment, entry.suite, entry.available) == ("Ant-v5", "gym", False)


@pytest.mark.parametrize("name", ["hopper-medum", "hopper", "nonsense"])
def test_an_unknown_task_is_refused_with_a_hint(name):
    with pytest.raises(InputError, match=f"unknown task '{name}'"):
        load_task(name)


def differs(environment: str, policy: str, *, episodes: int, actions: str) -> float:
    """How many standard errors a fresh simulation is from the committed truth."""
    facts = gym.read_facts(environment)
    run = simulate(
        facts["environment"],
        gym.load_target_policies(environment)[policy],
        seed=987,
        horizon=facts["horizon"],
        episodes=episodes,
        actions="mean" if actions == "mean" else "sample",
        options=facts["options"],
    ).returns(facts["discount"])
    committed = facts["policies"][policy][f"{actions}_actions"]["discounted"]
    error = np.hypot(committed["standard_error"], run.std(ddof=1) / np.sqrt(episodes))
    return float(abs(run.mean() - committed["value"]) / error)


@pytest.mark.parametrize(("environment", "policy"), [("pendulum", "policy_04"), ("hopper", "policy_00")])
def test_committed_truths_hold_with_other_seeds(environment, policy, simulator):
    assert differs(environment, policy, episodes=30, actions="mean") < 2.5
    assert differs(environment, policy, episodes=30, actions="sampled") < 2.5


@pytest.mark.slow
@each_environment
def test_all_committed_truths_hold_with_other_seeds(environment, simulator):
    far = [
        differs(environment, policy, episodes=100, actions=actions)
        for policy in gym.load_target_policies(environment)
        for actions in ("mean", "sampled")
    ]
    # Of 22 independent differences about one lies beyond two standard errors by chance.
    assert sum(value > 2 for value in far) <= 4
    assert max(far) < 4


@pytest.mark.slow
@pytest.mark.parametrize("name", gym.list_names())
def test_every_data_set_can_be_made(name, simulator):
    episodes = gym.make_data(name, steps=3_000, seed=0)
    assert episodes.steps >= 3_000
    assert np.isfinite(episodes.observation).all()
    assert episodes.log_prob is not None
