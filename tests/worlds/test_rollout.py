"""rollout(): in worlds whose every step is known."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.data.episodes import Episodes
from vlbm.data.scaler import Scaler
from vlbm.errors import InputError
from vlbm.estimators.world_models.autoregressive import AutoRegressive
from vlbm.estimators.world_models.feedforward import FeedForward
from vlbm.estimators.world_models.vlbm import VLBM
from vlbm.policies import FunctionPolicy, Layer, MLPPolicy, Policy, TracedPolicy
from vlbm.worlds.base import Imagination, Outcome, World
from vlbm.worlds.rollout import CHUNK, FEW_EPISODES, LONG_CHUNK, rollout
from walks import walks

A = np.array([[0.9, 0.2], [-0.1, 0.95]])
B = np.array([[0.1], [0.3]])
PAYS = np.array([1.0, -2.0])


class LinearWorld(World):
    """x' = A x + B a exactly, seen as it is; pays x' . (1, -2); terminates with a constant probability."""

    observation: Scaler
    reward: Scaler
    action: Scaler
    ending: float = 0.0
    imagination: Imagination = eqx.field(static=True, default=Imagination())
    n_actions: int | None = eqx.field(static=True, default=None)
    terminates: bool = eqx.field(static=True, default=True)

    def draw_noise(self, key):
        return jax.random.normal(key)

    def reset(self, observation, noise):
        return observation

    def reset_from_prior(self, key):
        start = jax.random.normal(key, (2,))
        return start, start

    def step(self, state, action, noise):
        state = self.move(state, action, noise)
        return state, Outcome(state, self.pay(state), jnp.asarray(self.ending))

    def move(self, state, action, noise):
        return A.astype(np.float32) @ state + B.astype(np.float32) @ action

    def pay(self, state):
        return PAYS.astype(np.float32) @ state


class WholeNumberWorld(LinearWorld):
    """x' = (x_2 + a, -x_1), pays x'_1: no rounding anywhere, so that two ways of running it agree exactly."""

    def move(self, state, action, noise):
        amount = action.astype(jnp.float32) - 1 if self.n_actions is not None else action[0]
        return jnp.stack([state[1] + amount, -state[0]])

    def pay(self, state):
        return state[0]


class NoisyWorld(LinearWorld):
    """x' = x + (a, noise): the second column tells what was drawn."""

    def move(self, state, action, noise):
        return state + jnp.stack([action[0], noise])


class ExplodingWorld(LinearWorld):
    """Everything grows by a million every step."""

    def move(self, state, action, noise):
        return state * 1e6

    def pay(self, state):
        return jnp.ones(())


def make(kind: type[LinearWorld] = LinearWorld, *, actions: int = 1, **fields) -> LinearWorld:
    return kind(Scaler.identity(2), Scaler.identity(1), Scaler.identity(actions), **fields)


class Gain(TracedPolicy):
    """a = gain . x, with noise of deviation `spread` when sampled."""

    gain: jax.Array
    spread: jax.Array

    observation_size = None
    action_size = None

    def mean(self, observation):
        return (observation * self.gain).sum(-1, keepdims=True)

    def sample(self, observation, *, key):
        return self.mean(observation) + self.spread * jax.random.normal(key, (*observation.shape[:-1], 1))


def gain(*values: float, spread: float = 0.0) -> Gain:
    return Gain(jnp.array(values), jnp.array(spread))


START = np.array([[1.0, 0.5], [-2.0, 1.0], [0.0, 3.0]], np.float32)


def run(
    world: World, policies: dict[str, Policy], *, horizon: int, start=START, seed: int = 0, **options
) -> dict[str, Episodes]:
    episodes = len(start) if start is not None else options.pop("episodes")
    return rollout(
        world, policies, start=start, episodes=episodes, horizon=horizon, key=jax.random.key(seed), **options
    )


def closed_form(feedback: list[float], horizon: int, discount: float) -> np.ndarray:
    """sum_t discount^t PAYS . (A + B K)^(t+1) x_0."""
    matrix, power, total = A + B @ np.array([feedback]), np.eye(2), np.zeros(2)
    for time in range(horizon):
        power = matrix @ power
        total += discount**time * (PAYS @ power)
    return START @ total


@pytest.mark.parametrize(("horizon", "copies"), [(1, 1), (CHUNK + 3, FEW_EPISODES), (LONG_CHUNK + 3, 1)])
def test_returns_equal_the_closed_form(horizon, copies):
    gains = {"still": [0.0, 0.0], "pulls": [-0.5, -0.2]}
    policies = {name: gain(*feedback) for name, feedback in gains.items()}
    imagined = run(make(), policies, horizon=horizon, start=np.tile(START, (copies, 1)))
    for name, feedback in gains.items():
        assert set(imagined[name].length) == {horizon}
        assert not imagined[name].terminated.any()
        expected = np.tile(closed_form(feedback, horizon, 0.9), copies)
        np.testing.assert_allclose(imagined[name].returns(0.9), expected, rtol=1e-4)


def test_imagined_episodes_hold_what_was_seen_done_and_paid():
    episodes = run(make(), {"pulls": gain(-0.5, -0.2)}, horizon=4)["pulls"]
    for index, state in enumerate(START.astype(np.float64)):
        row, step = episodes.first_observation[index], episodes.first_step[index]
        np.testing.assert_array_equal(episodes.observation[row], START[index])
        for time in range(4):
            action = np.array([-0.5, -0.2]) @ state
            np.testing.assert_allclose(episodes.action[step + time], [action], rtol=1e-4, atol=1e-6)
            state = A @ state + B[:, 0] * action
            np.testing.assert_allclose(episodes.observation[row + time + 1], state, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(episodes.reward[step + time], PAYS @ state, rtol=1e-4, atol=1e-6)


def same(first: Episodes, second: Episodes) -> bool:
    parts = ("observation", "action", "reward", "length", "terminated")
    return all(np.array_equal(getattr(first, part), getattr(second, part)) for part in parts)


def test_a_policy_acts_the_same_inside_and_outside_the_compiled_loop():
    inside, outside = gain(-1.0, 0.0), FunctionPolicy(lambda seen: -seen[:, :1])
    imagined = run(
        make(WholeNumberWorld, ending=0.02),
        {"inside": inside, "outside": outside, "inside again": inside},
        horizon=CHUNK + 7,
        start=np.tile(START, (FEW_EPISODES, 1)),
    )
    assert list(imagined) == ["inside", "outside", "inside again"]
    assert same(imagined["inside"], imagined["outside"])
    assert same(imagined["inside"], imagined["inside again"])
    assert 0 < imagined["inside"].terminated.mean() < 1


def test_a_policy_outside_the_compiled_loop_is_asked_once_a_step_and_never_beyond_the_horizon():
    asked = []

    def act(seen: np.ndarray) -> np.ndarray:
        asked.append(len(seen))
        return np.zeros((len(seen), 1))

    run(make(), {"asked": FunctionPolicy(act)}, horizon=7)
    assert asked == [3] * 7


def mlp(hidden: tuple[int, ...], *, seed: int, outputs: int = 1, distribution: str = "gaussian") -> MLPPolicy:
    random = np.random.default_rng(seed)
    sizes = (2, *hidden, outputs)
    layers = [
        Layer(jnp.asarray(random.normal(size=(after, before)), jnp.float32), jnp.zeros(after))
        for before, after in itertools.pairwise(sizes)
    ]
    return MLPPolicy(layers[:-1], layers[-1], nonlinearity="tanh", distribution=distribution)


def test_policies_of_different_shapes_keep_their_names_order_and_numbers():
    policies = {
        "wide": mlp((5,), seed=0),
        "deep": mlp((3, 3), seed=1),
        "function": FunctionPolicy(lambda seen: 0.1 * seen[:, 1:]),
        "wide too": mlp((5,), seed=2),
        "gain": gain(-0.3, 0.1),
        "deep too": mlp((3, 3), seed=3),
    }
    together = run(make(), policies, horizon=5)
    assert list(together) == list(policies)
    firsts = {name: float(episodes.action[0, 0]) for name, episodes in together.items()}
    assert len(set(firsts.values())) == len(policies)
    for name, policy in policies.items():
        expected = np.asarray(policy.mean(START))
        np.testing.assert_allclose(together[name].action[::5], expected, rtol=1e-5, atol=1e-6)


# What is random


def test_all_policies_meet_the_same_noise_and_episodes_and_steps_each_their_own():
    policies = {
        "left": gain(0.0, 0.0, spread=1.0),
        "network": mlp((3,), seed=0),
        "function": FunctionPolicy(lambda seen: np.ones((len(seen), 1))),
    }
    imagined = run(make(NoisyWorld, ending=0.05), policies, horizon=9, actions="sample")
    drawn = {name: episodes.observation[:, 1] for name, episodes in imagined.items()}
    assert np.ptp(imagined["left"].length) > 0
    for name in ("network", "function"):
        np.testing.assert_array_equal(imagined[name].length, imagined["left"].length)
        np.testing.assert_array_equal(drawn[name], drawn["left"])
    noise = np.diff(imagined["function"].observation[:, 1])[imagined["function"].observation_before]
    assert len(np.unique(noise)) == len(noise)


def test_policies_that_sample_draw_the_same_for_one_episode_and_other_numbers_for_others():
    policies = {"one": gain(0.0, 0.0, spread=1.0), "two": gain(5.0, 0.0, spread=1.0)}
    start = np.zeros((4, 2), np.float32)
    imagined = run(make(ExplodingWorld), policies, horizon=3, start=start, actions="sample")
    np.testing.assert_array_equal(imagined["one"].action, imagined["two"].action)
    assert len(np.unique(imagined["one"].action)) == 12
    assert not run(make(), {"one": policies["one"]}, horizon=3, start=start)["one"].action.any()


def test_a_function_that_draws_is_given_another_key_every_step_and_the_same_again():
    def draw(seen: np.ndarray, *, key: jax.Array) -> np.ndarray:
        return np.asarray(jax.random.normal(key, (len(seen), 1)))

    policies = {name: FunctionPolicy(lambda seen: seen[:, :1], draw=draw) for name in ("one", "two")}
    first, again, other = (
        run(make(), policies, horizon=4, seed=seed, actions="sample") for seed in (0, 0, 1)
    )
    assert same(first["one"], first["two"])
    assert same(first["one"], again["one"])
    assert len(np.unique([first["one"].action, other["one"].action])) == 24


def test_an_estimate_does_not_depend_on_the_policies_beside():
    policies = {
        "a": gain(-0.5, -0.2, spread=1.0),
        "b": mlp((5,), seed=0),
        "function": FunctionPolicy(lambda seen: 0.1 * seen[:, 1:]),
        "c": gain(0.1, 0.1),
        "other function": FunctionPolicy(lambda seen: 1 - seen[:, :1]),
    }
    world = make(NoisyWorld, ending=0.05)
    together = run(world, policies, horizon=20, actions="sample")
    for name, policy in policies.items():
        alone = run(world, {name: policy}, horizon=20, actions="sample")[name]
        check_same_but_rounding(together[name], alone)
    assert 0 < together["a"].terminated.mean() < 1


def test_an_episode_does_not_depend_on_how_many_there_are():
    start = np.random.default_rng(0).normal(size=(FEW_EPISODES + 9, 2)).astype(np.float32)
    world, policy = make(NoisyWorld, ending=0.05), {"a": gain(-0.5, -0.2, spread=1.0)}
    many = run(world, policy, horizon=12, start=start, actions="sample")["a"]
    few = run(world, policy, horizon=12, start=start[:5], actions="sample")["a"]
    check_same_but_rounding(many.select(range(5)), few)


def check_same_but_rounding(first: Episodes, second: Episodes) -> None:
    np.testing.assert_array_equal(first.length, second.length)
    np.testing.assert_array_equal(first.terminated, second.terminated)
    for part in ("observation", "action", "reward"):
        np.testing.assert_allclose(getattr(first, part), getattr(second, part), rtol=1e-4, atol=1e-5)


def split_work() -> dict[str, list[Episodes]]:
    """Enough episodes to be worth two devices, of policies inside and outside JAX."""
    start = np.random.default_rng(0).integers(-9, 9, size=(2 * FEW_EPISODES, 2)).astype(np.float32)
    policies = {
        "inside": gain(-1.0, 0.0, spread=1.0),
        "inside too": gain(0.0, 1.0),
        "outside": FunctionPolicy(lambda seen: -seen[:, :1]),
    }
    worlds = [make(kind, ending=0.01) for kind in (WholeNumberWorld, NoisyWorld)]
    found = [run(world, policies, horizon=CHUNK + 3, start=start, actions="sample") for world in worlds]
    return {name: [imagined[name] for imagined in found] for name in policies}


IN_TWO = """
import sys
import vlbm

vlbm.use_cores()

import jax
import numpy as np
from vlbm.worlds import rollout
import test_rollout

advance, used = rollout._advance, set()

def watched(*inputs, **options):
    begun, trace = advance(*inputs, **options)
    used.add(len(begun.observation.sharding.device_set))
    return begun, trace

rollout._advance = watched
arrays = {
    f"{name} {index} {part}": getattr(episodes, part)
    for name, several in test_rollout.split_work().items()
    for index, episodes in enumerate(several)
    for part in ("observation", "action", "reward", "length", "terminated")
}
np.savez(sys.argv[1], devices=len(jax.local_devices()), used=sorted(used), **arrays)
"""


def test_results_are_the_same_on_one_device_and_on_two(tmp_path):
    here = Path(__file__).parent
    places = [str(here), str(here.parent), *sys.path]
    environment = {**os.environ, "VLBM_CORES": "2", "PYTHONPATH": os.pathsep.join(places)}
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    subprocess.run([sys.executable, "-c", IN_TWO, tmp_path / "two.npz"], env=environment, check=True)
    two = np.load(tmp_path / "two.npz")
    assert (two["devices"], two["used"].tolist()) == (2, [2])
    assert jax.device_count() == 1
    for name, several in split_work().items():
        for index, episodes in enumerate(several):
            parts = ("observation", "action", "reward", "length", "terminated")
            check_same_but_rounding(
                episodes, Episodes(**{part: two[f"{name} {index} {part}"] for part in parts})
            )
            assert 0 < episodes.terminated.mean() < 1


# Endings


def test_episodes_end_at_the_learnt_rate_and_all_policies_meet_the_same_ends():
    world, start = make(ending=0.25), np.zeros((4000, 2), np.float32)
    imagined = run(world, {"a": gain(0.0, 0.0), "b": gain(1.0, 1.0)}, horizon=CHUNK, start=start)
    length = imagined["a"].length
    assert imagined["a"].terminated.all()
    # Geometric: mean 4, deviation sqrt(0.75) / 0.25 = 3.46.
    assert abs(length.mean() - 4) < 4 * 3.46 / np.sqrt(4000)
    np.testing.assert_allclose((length == 1).mean(), 0.25, atol=0.03)
    np.testing.assert_array_equal(length, imagined["b"].length)


@pytest.mark.parametrize("termination", [None, lambda seen: np.zeros(len(seen), bool)])
def test_a_certain_ending_leaves_one_step_whatever_the_users_rule_says(termination):
    policies = {"a": gain(0.0, 0.0)}
    episodes = run(make(ending=1.0), policies, horizon=CHUNK + 10, termination=termination)["a"]
    assert episodes.length.tolist() == [1, 1, 1]
    assert episodes.terminated.all()


ONE = {
    "traced": lambda: Constant(jnp.ones(1)),
    "host": lambda: FunctionPolicy(lambda seen: 1 + 0 * seen[:, :1]),
}


class Constant(TracedPolicy):
    """The same action always."""

    action: jax.Array

    observation_size = None
    action_size = None

    def mean(self, observation):
        return jnp.broadcast_to(self.action, (len(observation), 1))

    def sample(self, observation, *, key):
        return self.mean(observation)


@pytest.mark.parametrize("kind", ONE)
def test_the_users_rule_ends_episodes_at_its_first_true(kind):
    # Under a = 1 and x' = (x_2 + a, -x_1), the first numbers of (0, 0) are 1, 1, 0, 0, 1, 1, ...
    start = np.array([[0.0, 0.0], [0.0, 3.0], [10.0, 0.0]], np.float32)
    world, policies = make(WholeNumberWorld), {"one": ONE[kind]()}
    plain = run(world, policies, horizon=8, start=start)["one"]
    assert plain.reward[:4].tolist() == [1, 1, 0, 0]
    ruled = run(world, policies, horizon=8, start=start, termination=lambda seen: seen[:, 0] >= 4)["one"]
    assert ruled.length.tolist() == [8, 1, 4]
    assert ruled.terminated.tolist() == [False, True, True]
    for index, length in enumerate(ruled.length):
        step, mine = plain.first_step[index], ruled.first_step[index]
        np.testing.assert_array_equal(ruled.reward[mine : mine + length], plain.reward[step : step + length])


def test_the_rule_is_asked_about_every_stretch():
    calls = []

    def second_time(seen: np.ndarray) -> np.ndarray:
        calls.append(len(seen))
        return np.full(len(seen), len(calls) == 2)

    start = np.zeros((FEW_EPISODES + 1, 2), np.float32)
    still = {"a": gain(0.0, 0.0)}
    episodes = run(make(), still, horizon=3 * CHUNK, start=start, termination=second_time)["a"]
    assert calls == [len(start) * CHUNK] * 2  # after the second chunk all have terminated
    assert set(episodes.length.tolist()) == {CHUNK + 1}


FLEES = {"traced": lambda: gain(-1.0, 0.0), "host": lambda: FunctionPolicy(lambda seen: -seen[:, :1])}


@pytest.mark.parametrize("kind", FLEES)
def test_what_comes_after_an_ending_by_the_rule_need_not_be_finite(kind):
    def large(seen: np.ndarray) -> np.ndarray:
        return np.abs(seen).max(1) > 1e10

    start = np.array([[1.0, 0.5], [1e-36, 0.0]], np.float32)  # one ends long before the other
    world = make(ExplodingWorld)
    episodes = run(world, {"a": FLEES[kind]()}, horizon=20, start=start, termination=large)["a"]
    assert episodes.length.tolist() == [2, 8]
    assert np.isfinite(episodes.observation).all()


def test_a_rule_that_does_not_answer_for_each_observation_is_refused():
    with pytest.raises(InputError, match="termination: for 15 observations it returned an array of shape"):
        run(make(), {"a": gain(0.0, 0.0)}, horizon=5, termination=lambda seen: True)


# Learnt worlds

SMALL = {
    "vlbm": VLBM(
        branches=2, latents=3, units=6, head_units=(6,), g_units=(6,), sampling="all", reencode_every=5
    ),
    "ff": FeedForward(units=(6,), members=3, sampling="all", ensemble="step"),
    "ar": AutoRegressive(units=(6,), members=2, sampling="all"),
}


@pytest.mark.parametrize("method", SMALL)
def test_in_a_learnt_world_too_neither_company_nor_the_compiled_loop_changes_anything(method):
    logs = walks(8, 40)
    world = SMALL[method].make_world(logs, key=jax.random.key(0))
    policies = {"a": mlp((5,), seed=0), "b": mlp((5,), seed=1)}
    start = logs.initial_observations()
    together = run(world, policies, start=start, horizon=12)
    for name, policy in policies.items():
        alone = run(world, {name: policy}, start=start, horizon=12)[name]
        outside = run(world, {name: FunctionPolicy(policy.mean)}, start=start, horizon=12)[name]
        check_same_but_rounding(together[name], alone)
        check_same_but_rounding(together[name], outside)
    assert len(np.unique(together["a"].reward)) == together["a"].steps  # nothing is drawn twice


# What leaves the numbers


class GivesUp(Constant):
    """One step to the right, until it is this far."""

    limit: jax.Array

    def mean(self, observation):
        return jnp.where(observation[:, :1] >= self.limit, jnp.nan, self.action)


@pytest.mark.parametrize(("step", "episodes"), [(0, 1), (3, 1), (CHUNK + 5, FEW_EPISODES)])
def test_a_traced_policy_that_returns_nan_is_named_with_the_step(step, episodes):
    policies = {
        name: GivesUp(jnp.ones(1), jnp.asarray(limit, jnp.float32))
        for name, limit in (("good", np.inf), ("bad", step), ("worse", step + 1))
    }
    message = f"policy 'bad' returned actions that are not finite, at step {step} of the roll-out"
    with pytest.raises(InputError, match=message):
        run(make(NoisyWorld), policies, start=np.zeros((episodes, 2), np.float32), horizon=2 * CHUNK)


def test_a_function_that_returns_nan_is_named():
    calls = []

    def act(seen: np.ndarray) -> np.ndarray:
        calls.append(seen)
        return np.full((len(seen), 1), np.nan if len(calls) > 3 else 0.0)

    with pytest.raises(InputError, match=r"'bad'.*not finite"):
        run(make(), {"bad": FunctionPolicy(act)}, horizon=5)


def test_a_function_with_actions_of_the_wrong_shape_is_named():
    with pytest.raises(InputError, match=r"'bad'.*shape \(3, 2\)"):
        run(make(), {"bad": FunctionPolicy(lambda seen: np.zeros((len(seen), 2)))}, horizon=5)


@pytest.mark.parametrize("kind", FLEES)
def test_a_model_that_leaves_the_numbers_is_reported_with_policy_and_step(kind):
    # Actions that are not finite follow from it: the policy is not to blame.
    with pytest.raises(
        InputError, match="the model imagined observations that are not finite under policy 'a', at step 6"
    ):
        run(make(ExplodingWorld), {"a": FLEES[kind]()}, horizon=20)


# Discrete actions and the prior


def test_action_ids_come_through_as_they_were_chosen():
    world = make(WholeNumberWorld, actions=3, n_actions=3)
    policies = {
        "function": FunctionPolicy(lambda seen: (seen[:, 0] > 0).astype(int) * 2),
        "network": mlp((4,), seed=0, outputs=3, distribution="greedy"),
    }
    imagined = run(world, policies, horizon=6)
    chosen = imagined["function"]
    assert chosen.n_actions == 3
    assert chosen.discrete
    assert np.issubdtype(chosen.action.dtype, np.integer)
    before = chosen.observation[chosen.observation_before]
    np.testing.assert_array_equal(chosen.action, (before[:, 0] > 0) * 2)
    after = chosen.observation[chosen.observation_before + 1]
    np.testing.assert_array_equal(after, np.stack([before[:, 1] + chosen.action - 1, -before[:, 0]], axis=1))
    ids = imagined["network"]
    seen = ids.observation[ids.observation_before]
    np.testing.assert_array_equal(ids.action, policies["network"].mean(seen))


def test_without_start_observations_the_world_imagines_its_own():
    imagined = run(make(), {"a": gain(0.0, 0.0), "b": gain(1.0, 0.0)}, horizon=2, start=None, episodes=500)
    first = imagined["a"].initial_observations()
    np.testing.assert_allclose(first.std(0), 1.0, atol=0.1)
    np.testing.assert_array_equal(first, imagined["b"].initial_observations())


def test_another_seed_gives_other_episodes_and_the_same_seed_the_same():
    world, start = make(ending=0.2), np.zeros((50, 2), np.float32)
    first, again, other = (
        run(world, {"a": gain(0.0, 0.0)}, horizon=20, start=start, seed=seed)["a"] for seed in (0, 0, 1)
    )
    assert same(first, again)
    assert first.length.tolist() != other.length.tolist()
