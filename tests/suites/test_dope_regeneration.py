"""Look-alikes of D4RL's data are what their rule says, the same for the same seed, and marked."""

from __future__ import annotations

import json

import numpy as np
import pytest
from dope_files import write_policies

from test_cli import run
from vlbm.errors import InputError
from vlbm.policies.dope import read_dope
from vlbm.suites import dope
from vlbm.suites.cache import data_path
from vlbm.suites.dope.targets import drop_last_inputs

pytest.importorskip("mujoco")


@pytest.fixture(autouse=True)
def policies(monkeypatch, tmp_path):
    monkeypatch.delenv("VLBM_DOPE", raising=False)
    monkeypatch.setenv("VLBM_CACHE", str(tmp_path / "cache"))
    return write_policies(tmp_path / "policies", "hopper")


def test_random_data_are_uniform_noise_with_its_density(policies):
    episodes = dope.regenerate("dope/hopper-random", policies=policies, steps=300, seed=0)
    assert episodes.steps >= 300
    assert episodes.observation_size == 11
    np.testing.assert_allclose(episodes.log_prob, -3 * np.log(2), rtol=1e-6)
    assert np.abs(episodes.action).max() <= 1
    assert np.abs(episodes.action.mean(axis=0)).max() < 0.15
    assert episodes.action.var() == pytest.approx(1 / 3, rel=0.1)


@pytest.mark.parametrize(
    ("dataset", "acting"), [("medium", [3]), ("expert", [10]), ("medium-expert", [3, 10])]
)
def test_who_acts_is_fixed_and_their_densities_are_kept(policies, dataset, acting):
    episodes = dope.regenerate(f"dope/hopper-{dataset}", policies=policies, steps=60, seed=0)
    assert episodes.steps >= 60
    assert episodes.log_prob is not None
    candidates = [read_dope(policies / "hopper" / f"hopper_online_{number}.pkl") for number in range(11)]
    observation = episodes.observation[episodes.observation_before]
    densities = np.array([policy.log_prob(observation, episodes.action) for policy in candidates])
    matching = np.abs(densities - episodes.log_prob) < 1e-2
    assert matching[acting].any(axis=0).all()
    for number in acting:
        assert matching[number].mean() > 0.3


def test_medium_replay_goes_up_to_the_medium_policy_in_equal_parts(policies):
    episodes = dope.regenerate("dope/hopper-medium-replay", policies=policies, steps=100, seed=0)
    assert episodes.steps >= 100
    (note,) = episodes.notes
    assert note.startswith("regenerated: simulated in Hopper-v4 by hopper_online_0, hopper_online_1, ")
    assert "hopper_online_3" in note
    assert "hopper_online_4" not in note


def test_the_same_seed_makes_the_same_data(policies):
    one, again, other = (
        dope.regenerate("dope/hopper-expert", policies=policies, steps=40, seed=seed) for seed in (0, 0, 1)
    )
    assert one.fingerprint() == again.fingerprint()
    assert one.fingerprint() != other.fingerprint()


def test_a_task_made_of_them_is_called_regenerated_even_from_a_file(policies):
    episodes = dope.load_regenerated("dope/hopper-medium", policies=policies, steps=40, seed=0)
    assert dope.make_task("dope/hopper-medium", episodes, policies=policies).regenerated
    kept = data_path("dope/hopper-medium", steps=40, seed=0)
    assert dope.load_task("dope/hopper-medium", data=kept, policies=policies).regenerated


def test_kept_data_are_used_again_and_remade_when_damaged_or_of_other_policies(policies):
    def load():
        return dope.load_regenerated("dope/hopper-medium", policies=policies, steps=40, seed=0)

    first = load()
    kept = data_path("dope/hopper-medium", steps=40, seed=0)
    written = kept.stat().st_mtime_ns
    assert load().fingerprint() == first.fingerprint()
    assert kept.stat().st_mtime_ns == written
    kept.write_bytes(kept.read_bytes()[:-10])
    assert load().fingerprint() == first.fingerprint()
    (policies / "hopper" / "hopper_online_7.pkl").replace(policies / "hopper" / "hopper_online_3.pkl")
    assert load().fingerprint() != first.fingerprint()


def test_ants_policies_act_on_27_observations(policies):
    write_policies(policies, "ant")
    episodes = dope.regenerate("dope/ant-expert", policies=policies, steps=20, seed=0)
    assert (episodes.observation_size, episodes.action_size) == (27, 8)
    policy = drop_last_inputs(read_dope(policies / "ant" / "ant_online_10.pkl"), 27)
    observation = episodes.observation[episodes.observation_before]
    np.testing.assert_allclose(policy.log_prob(observation, episodes.action), episodes.log_prob, atol=1e-2)
    assert dope.make_task("dope/ant-expert", episodes, policies=policies).episodes.observation_size == 27


def test_what_cannot_be_regenerated_says_so(policies, tmp_path):
    with pytest.raises(InputError, match="dope/door-human: cannot be regenerated"):
        dope.regenerate("dope/door-human", policies=policies, steps=10, seed=0)
    with pytest.raises(InputError, match=r"walker_online_3.pkl: is not in"):
        dope.regenerate("dope/walker2d-medium", policies=policies, steps=10, seed=0)
    with pytest.raises(InputError, match="steps=0"):
        dope.regenerate("dope/hopper-medium", policies=policies, steps=0, seed=0)


def test_a_comparison_on_a_look_alike_says_so(policies, tmp_path, capsys):
    target = tmp_path / "out.json"
    options = ("--like-d4rl", "--policies", policies, "--steps", 3000, "--methods", "wpdis", "--quiet")
    assert run("compare", "dope/hopper-medium", *options, "--json", target) == 0
    assert "dope/hopper-medium (regenerated)" in capsys.readouterr().out
    result = json.loads(target.read_text())
    assert result["task"] == "dope/hopper-medium (regenerated)"
    assert result["methods"]["wpdis"]["estimates"][0]["warnings"][0].startswith("regenerated: ")
