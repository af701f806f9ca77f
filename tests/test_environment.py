"""A learnt world acts as a Gymnasium environment: on a world that counts, exactly; on a fitted one, too."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.error import ResetNeeded  # noqa: E402
from gymnasium.utils.env_checker import check_env  # noqa: E402
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

import vlbm  # noqa: E402
from vlbm.data.episodes import Episodes  # noqa: E402
from vlbm.data.scaler import Scaler  # noqa: E402
from vlbm.environment import LearnedEnvironment, LearnedVectorEnvironment  # noqa: E402
from vlbm.errors import InputError  # noqa: E402
from vlbm.estimators.world_models.evaluator import WorldEvaluator  # noqa: E402
from vlbm.policies import FunctionPolicy  # noqa: E402
from vlbm.worlds.base import Imagination, Outcome, World  # noqa: E402
from vlbm.worlds.vlbm import BranchingModel  # noqa: E402

TINY: dict[str, Any] = {"branches": 2, "latents": 4, "units": 8, "head_units": (16,), "g_units": (8,)}


class Count(NamedTuple):
    steps: jax.Array
    total: jax.Array  # [2, 1]: an axis in front, as branches are


class CountingWorld(World):
    """Shows the steps since a start, the sum of the actions and noise; pays the action; ends after `last`."""

    observation: Scaler
    reward: Scaler
    action: Scaler
    n_actions: int | None = eqx.field(static=True, default=None)
    terminates: bool = eqx.field(static=True, default=True)
    last: int = eqx.field(static=True, default=1_000)
    imagination: Imagination = eqx.field(static=True, default=Imagination())

    def draw_noise(self, key):
        return jax.random.normal(key)

    def reset(self, observation, noise):
        return Count(observation[0], jnp.full((2, 1), observation[1]))

    def reset_from_prior(self, key):
        return Count(jnp.asarray(-5.0), jnp.zeros((2, 1))), jnp.full(3, -5.0)

    def step(self, state, action, noise):
        action = action.astype(jnp.float32) if self.n_actions else action[0]
        state = Count(state.steps + 1, state.total + action)
        observation = jnp.stack([state.steps, state.total[1, 0], noise])
        return state, Outcome(observation, action, jnp.where(state.steps >= self.last, 1.0, 0.0))


def counting(
    *, start: str = "encoder", horizon: int = 50, initial=((0, 0, 0),), **settings
) -> WorldEvaluator:
    world = CountingWorld(Scaler.identity(3), Scaler.identity(1), Scaler.identity(1), **settings)
    return WorldEvaluator(
        settings=SimpleNamespace(start=start),
        worlds=(world,),
        initial=np.asarray(initial, np.float32),
        horizon=horizon,
        seed=0,
        data={},
        histories=(),
        seconds=0.0,
    )


def logged() -> Episodes:
    """Noise that ends one step in ten, with rewards that follow the actions."""
    random = np.random.default_rng(0)
    length = np.minimum(random.geometric(0.1, size=60), 12)
    steps = int(length.sum())
    action = random.uniform(-1, 3, size=(steps, 2)).astype(np.float32)
    return Episodes(
        observation=random.normal(size=(steps + 60, 3)).astype(np.float32),
        action=action,
        reward=(action.sum(axis=1) + random.normal(size=steps)).astype(np.float32),
        length=length,
        terminated=length < 12,
    )


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """These programs take longer to optimise than to run."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory) -> WorldEvaluator:
    """Fitted, saved and loaded."""
    place = tmp_path_factory.mktemp("model")
    settings = vlbm.VLBM(**TINY, emission="state", window=3, batch=16, steps=10, models=1, keep=None)
    settings.fit(logged()).save(place)
    return vlbm.load_model(place)


def check(environment: LearnedEnvironment) -> None:
    """Gymnasium's checks, with its warnings as errors; a range other than [-1, 1] is the data's, not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*symmetric and normalized space.*")
        warnings.filterwarnings("ignore", message=".*(minimum|maximum) value is -?infinity.*")
        check_env(environment, skip_render_check=True)


def play(environment: LearnedEnvironment, actions: np.ndarray, *, seed: int | None = None) -> np.ndarray:
    """Everything a run shows, as rows; an episode that ends is reset, as a row of its own."""
    observation, _ = environment.reset(seed=seed)
    rows, ended = [[*observation, 0, 0, 0]], False
    for action in actions:
        if ended:
            (observation, _), reward, terminated, truncated = environment.reset(), 0.0, False, False
        else:
            observation, reward, terminated, truncated, _ = environment.step(action)
        assert observation in environment.observation_space
        rows.append([*observation, reward, terminated, truncated])
        ended = terminated or truncated
    return np.array(rows)


# One episode at a time


def test_gymnasium_finds_nothing_to_complain_about():
    check(LearnedEnvironment(counting()))


def test_unscaled_actions_have_no_bounds():
    space = LearnedEnvironment(counting()).action_space
    assert space == gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)


def test_an_episode_is_the_worlds_own():
    environment = LearnedEnvironment(counting(initial=[(7, 1, 0)]), horizon=3)
    observation, info = environment.reset(seed=0)
    assert observation.tolist() == [7, 1, 0]
    assert observation.dtype == np.float32
    assert info == {}
    steps = [environment.step(np.array([action])) for action in (0.5, 2.0, -1.0)]
    assert [step[0][:2].tolist() for step in steps] == [[8, 1.5], [9, 3.5], [10, 2.5]]
    assert [step[1] for step in steps] == [0.5, 2.0, -1.0]
    assert [step[2:4] for step in steps] == [(False, False), (False, False), (False, True)]
    assert all(step[4] == {"termination_probability": 0.0} for step in steps)


def test_the_learnt_termination_terminates():
    environment = LearnedEnvironment(counting(last=2))
    environment.reset(seed=0)
    assert environment.step([0.0])[2:] == (False, False, {"termination_probability": 0.0})
    assert environment.step([0.0])[2:] == (True, False, {"termination_probability": 1.0})


def test_a_rule_of_the_users_terminates_beside_the_learnt_termination():
    rule = LearnedEnvironment(counting(last=3), termination=lambda observation: observation[:, 1] > 1)
    rule.reset(seed=0)
    assert [rule.step([action])[2] for action in (0.5, 0.6)] == [False, True]
    rule.reset()
    assert [rule.step([0.0])[2] for _ in range(3)] == [False, False, True]


def test_the_same_seed_and_actions_give_the_same_run_and_others_another():
    environment = LearnedEnvironment(counting(initial=[(0, 0, 0), (1, 0, 0), (2, 0, 0)]), horizon=4)
    actions = np.linspace(-1, 1, 12)[:, None]
    first, again = (play(environment, actions, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (first != play(environment, actions, seed=4)).any()
    assert (first != play(environment, actions)).any()
    assert len(np.unique(first[:, 2])) > 8  # every step has its own noise


def test_resets_visit_all_logged_starts():
    environment = LearnedEnvironment(counting(initial=[(0, 0, 0), (1, 0, 0), (2, 0, 0)]))
    assert {environment.reset(seed=seed)[0][0] for seed in range(30)} == {0, 1, 2}


def test_an_episode_starts_where_it_is_told_to():
    environment = LearnedEnvironment(counting())
    observation, _ = environment.reset(seed=0, options={"observation": [3, 4, 0]})
    assert observation.tolist() == [3, 4, 0]
    assert environment.step([1.0])[0][:2].tolist() == [4, 5]


def test_the_prior_starts_episodes_if_the_settings_say_so():
    environment = LearnedEnvironment(counting(start="prior"))
    assert environment.reset(seed=0)[0].tolist() == [-5, -5, -5]
    assert environment.step([1.0])[0][:2].tolist() == [-4, 1]


def test_discrete_actions_are_ids():
    environment = LearnedEnvironment(counting(n_actions=3))
    assert environment.action_space == gymnasium.spaces.Discrete(3)
    check(environment)
    environment.reset(seed=0)
    assert [environment.step(action)[1] for action in (0, 2, np.int64(1))] == [0.0, 2.0, 1.0]
    for action, message in ((3, "0 to 2"), (-1, "0 to 2"), (1.5, "whole numbers"), ([1], "shape")):
        with pytest.raises(InputError, match=message):
            environment.step(action)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (0.5, r"shape \(\), expected \(1,\)"),
        ([0.5, 0.5], r"shape \(2,\), expected \(1,\)"),
        ([np.nan], "not finite"),
        ([np.inf], "not finite"),
        ([1e60], "not finite"),
        (["left"], "expected numbers"),
    ],
)
def test_actions_that_cannot_be_taken_are_named(action, message):
    environment = LearnedEnvironment(counting())
    environment.reset(seed=0)
    with pytest.raises(InputError, match=message):
        environment.step(action)


def test_settings_that_cannot_be_are_named():
    for settings, message in (
        ({"horizon": 0}, "horizon=0"),
        ({"world": 1}, "world=1"),
        ({"world": -1}, "world"),
    ):
        with pytest.raises(InputError, match=message):
            LearnedEnvironment(counting(), **settings)
    with pytest.raises(InputError, match="num_envs=0"):
        LearnedVectorEnvironment(counting(), 0)
    environment = LearnedEnvironment(counting(), termination=lambda observation: True)
    environment.reset(seed=0)
    with pytest.raises(InputError, match="one True or False for each"):
        environment.step([0.0])
    for observation, message in (([0, 0], "shape"), ([0, np.nan, 0], "column 1")):
        with pytest.raises(InputError, match=message):
            environment.reset(options={"observation": observation})


def test_a_step_needs_an_episode_under_way():
    environment = LearnedEnvironment(counting(), horizon=1)
    with pytest.raises(ResetNeeded):
        environment.step([0.0])
    environment.reset(seed=0)
    environment.step([0.0])
    with pytest.raises(ResetNeeded, match="ended"):
        environment.step([0.0])


def test_a_world_that_leaves_the_numbers_is_reported():
    environment = LearnedEnvironment(counting())
    environment.reset(seed=0, options={"observation": [0, 3e38, 0]})
    with pytest.raises(InputError, match="observations that are not finite, at step 1"):
        environment.step([3e38])


# Many side by side


def test_every_episode_goes_its_own_way():
    environment = LearnedVectorEnvironment(counting(initial=np.arange(300).reshape(100, 3)), 5)
    observation, _ = environment.reset(seed=0)
    assert observation in environment.observation_space
    assert len(np.unique(observation[:, 0])) > 1
    actions = np.arange(5.0, dtype=np.float32)[:, None]
    moved, reward, terminated, truncated, info = environment.step(actions)
    assert moved in environment.observation_space
    np.testing.assert_array_equal(moved[:, :2], observation[:, :2] + np.stack([np.ones(5), np.arange(5)], 1))
    np.testing.assert_array_equal(reward, np.arange(5))
    assert len(np.unique(moved[:, 2])) == 5
    assert reward.shape == terminated.shape == truncated.shape == (5,)
    assert terminated.dtype == truncated.dtype == bool
    assert info["termination_probability"].shape == (5,)


def test_an_episode_that_ended_begins_afresh_in_the_next_step():
    environment = LearnedVectorEnvironment(counting(last=4), 3, horizon=5)
    assert environment.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    environment.reset(seed=0, options={"observation": [[0, 9, 0], [2, 9, 0], [-5, 9, 0]]})
    action = np.ones((3, 1), np.float32)
    steps = [environment.step(action) for _ in range(6)]
    counts, totals = (np.array([step[0][:, column] for step in steps]) for column in (0, 1))
    reward, terminated, truncated = (np.array([step[index] for step in steps]) for index in (1, 2, 3))
    # The second terminates at 4 after two steps, the first after four, the third is cut off after five.
    np.testing.assert_array_equal(counts.T, [[1, 2, 3, 4, 0, 1], [3, 4, 0, 1, 2, 3], [-4, -3, -2, -1, 0, 0]])
    np.testing.assert_array_equal(
        totals.T, [[10, 11, 12, 13, 0, 1], [10, 11, 0, 1, 2, 3], [10, 11, 12, 13, 14, 0]]
    )
    np.testing.assert_array_equal(reward.T, [[1, 1, 1, 1, 0, 1], [1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 1, 0]])
    np.testing.assert_array_equal(np.argwhere(terminated), [[1, 1], [3, 0]])
    np.testing.assert_array_equal(np.argwhere(truncated), [[4, 2]])
    assert steps[2][4]["_termination_probability"].tolist() == [True, False, True]


def test_the_action_of_an_episode_that_begins_is_not_looked_at():
    environment = LearnedVectorEnvironment(counting(last=1), 2)
    environment.reset(seed=0, options={"observation": [[0, 0, 0], [-9, 0, 0]]})
    environment.step(np.zeros((2, 1)))
    observation, *_ = environment.step(np.array([[np.nan], [1.0]]))
    np.testing.assert_array_equal(observation[:, :2], [[0, 0], [-7, 1]])
    with pytest.raises(InputError, match="not finite"):
        environment.step(np.array([[np.nan], [1.0]]))
    with pytest.raises(InputError, match=r"shape \(2,\), expected \(2, 1\)"):
        environment.step(np.zeros(2))


def test_some_episodes_can_be_reset_while_others_go_on():
    environment = LearnedVectorEnvironment(counting(), 2)
    only_second = {"reset_mask": np.array([False, True])}
    with pytest.raises(ResetNeeded):
        environment.reset(options=dict(only_second))
    environment.reset(seed=0)
    environment.step(np.ones((2, 1)))
    observation, _ = environment.reset(options=dict(only_second))
    np.testing.assert_array_equal(observation[:, :2], [[1, 1], [0, 0]])
    np.testing.assert_array_equal(environment.step(np.ones((2, 1)))[0][:, :2], [[2, 2], [1, 1]])
    with pytest.raises(InputError, match="reset_mask"):
        environment.reset(options={"reset_mask": np.array([1, 0])})


def test_a_vector_of_one_is_the_single_environment():
    settings = {"initial": [(0, 0, 0), (1, 0, 0), (2, 0, 0)], "last": 4}
    actions = np.linspace(-1, 1, 15, dtype=np.float32)[:, None]
    rows = play(LearnedEnvironment(counting(**settings), horizon=3), actions, seed=1)
    vector = LearnedVectorEnvironment(counting(**settings), 1, horizon=3)
    observation, _ = vector.reset(seed=1)
    np.testing.assert_array_equal(observation[0], rows[0, :3])
    for action, row in zip(actions, rows[1:], strict=True):
        observation, reward, terminated, truncated, _ = vector.step(action[None])
        np.testing.assert_array_equal([*observation[0], reward[0], terminated[0], truncated[0]], row)


def test_wrappers_work():
    single = gymnasium.wrappers.RecordEpisodeStatistics(LearnedEnvironment(counting(), horizon=2))
    single.reset(seed=0)
    single.step([1.0])
    episode = single.step([2.0])[4]["episode"]
    assert (episode["r"], episode["l"]) == (3.0, 2)

    vector = gymnasium.wrappers.vector.RecordEpisodeStatistics(
        LearnedVectorEnvironment(counting(), 2, horizon=2)
    )
    vector = gymnasium.wrappers.vector.ClipReward(vector, max_reward=0.5)
    vector.reset(seed=0)
    infos = [vector.step(np.array([[1.0], [2.0]], np.float32))[4] for _ in range(5)]
    assert [("episode" in info) for info in infos] == [False, True, False, False, True]
    assert infos[4]["episode"]["r"].tolist() == [2.0, 4.0]
    assert infos[4]["episode"]["l"].tolist() == [2, 2]

    wrapped = SyncVectorEnv([lambda: LearnedEnvironment(counting(), horizon=2)] * 2)
    assert wrapped.reset(seed=0)[0].shape == (2, 3)


# A fitted world


def test_a_fitted_world_passes_gymnasiums_checks(evaluator):
    environment = LearnedEnvironment(evaluator)
    check(environment)
    space = environment.action_space
    np.testing.assert_allclose(
        space.low, evaluator.model.action.invert(evaluator.model.action.low), rtol=1e-5
    )
    np.testing.assert_allclose(space.high, [3, 3], atol=0.1)
    actions = np.random.default_rng(0).uniform(-5, 5, size=(100, 2))
    assert len(play(environment, actions, seed=0)) == 101  # which checks that observations lie in the space


def test_all_logged_starts_lie_in_the_space(evaluator):
    space = LearnedEnvironment(evaluator).observation_space
    assert all(start in space for start in evaluator.initial)
    outside = space.high + 1
    with pytest.raises(InputError, match=r"column 0 .*clip_margin=None"):
        LearnedEnvironment(evaluator).reset(options={"observation": outside})
    assert outside in LearnedEnvironment(evaluator.with_settings(clip_margin=None)).observation_space


def test_environments_of_one_shape_share_what_was_compiled(evaluator, monkeypatch):
    environment = LearnedEnvironment(evaluator)
    environment.reset(seed=0)
    environment.step([0.0, 0.0])

    def fail(*_, **__):
        raise AssertionError("traced again")

    monkeypatch.setattr(BranchingModel, "step", fail)
    monkeypatch.setattr(BranchingModel, "reset", fail)
    other = LearnedEnvironment(evaluator, horizon=3, termination=lambda observation: observation[:, 0] > 0)
    other.reset(seed=1)
    other.step([0.0, 0.0])


def test_the_environment_and_the_evaluator_agree_on_a_policys_value(evaluator):
    def act(observation):
        return 1 + np.tanh(observation[:, :2])

    count, rounds, discount = 100, 4, 0.9
    environment = LearnedVectorEnvironment(evaluator, count)
    returns = []
    for seed in range(rounds):
        observation, _ = environment.reset(seed=seed)
        value, alive = np.zeros(count), np.ones(count, bool)
        for time in range(evaluator.horizon):
            observation, reward, terminated, truncated, _ = environment.step(act(observation))
            value += np.where(alive, discount**time * reward, 0.0)
            alive &= ~(terminated | truncated)
        assert not alive.any()
        returns.append(value)
    ours = np.concatenate(returns)
    policy = FunctionPolicy(act, observation_size=3, action_size=2)
    theirs = evaluator.evaluate(policy, discount=discount, episodes=count * rounds).rows[0]
    error = np.hypot(ours.std() / np.sqrt(len(ours)), theirs.standard_error)
    assert abs(ours.mean() - theirs.value) < 3 * error
    assert ours.std() == pytest.approx(theirs.returns.std(), rel=0.2)


def test_a_fitted_world_takes_ids_and_starts_from_its_prior(evaluator):
    # Two numbers in an action vector are two ids, one-hot: the networks need not change.
    world = replace(evaluator.model, n_actions=2, action=Scaler.identity(2))
    environment = LearnedEnvironment(replace(evaluator.with_settings(start="prior"), worlds=(world,)))
    check(environment)
    assert environment.action_space == gymnasium.spaces.Discrete(2)
    play(environment, np.arange(20) % 2, seed=0)


def test_an_agent_can_be_trained_in_a_fitted_world(evaluator):
    sb3 = pytest.importorskip("stable_baselines3")
    agent = sb3.PPO(
        "MlpPolicy",
        LearnedEnvironment(evaluator),
        n_steps=64,
        batch_size=32,
        n_epochs=1,
        device="cpu",
        seed=0,
    )
    agent.learn(256)
    assert agent.num_timesteps == 256
    assert len(agent.ep_info_buffer) > 10


def test_without_gymnasium_the_extra_is_named():
    program = "import sys; sys.modules['gymnasium'] = None; import vlbm.environment"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "A learnt world as an environment needs the extra 'gym': pip install 'vlbm[gym]'" in ran.stderr
