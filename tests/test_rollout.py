"""rollout(): in worlds whose every step is known."""

from __future__ import annotations

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimators.worlds.ar import AutoRegressive
from vlbm.estimators.worlds.ff import FeedForward
from vlbm.estimators.worlds.vlbm import VLBM
from vlbm.models.base import Imagination, Outcome, World
from vlbm.policies import FunctionPolicy, Layer, MLPPolicy, Policy, TracedPolicy
from vlbm.rollout import rollout
from vlbm.scaling import Scaler
from vlbm.unrolling import CHUNK, FEW, LONG_CHUNK
from walks import walks

A = np.array([[0.9, 0.2], [-0.1, 0.95]])
B = np.array([[0.1], [0.3]])
PAYS = np.array([1.0, -2.0])


class LinearWorld(World):
    """x' = A x + B a exactly, seen as it is; pays x' . (1, -2); ends with a chance that never changes."""

    observation: Scaler
    reward: Scaler
    action: Scaler
    ending: float = 0.0
    imagination: Imagination = eqx.field(static=True, default=Imagination())
    choices: int | None = eqx.field(static=True, default=None)

    def begin(self, observation, *, key):
        return observation

    def begin_from_prior(self, batch, *, key):
        start = jnp.broadcast_to(jax.random.normal(key, (batch[-1], 2)), (*batch, 2))
        return start, start

    def step(self, state, action, *, luck):
        state = state @ A.T.astype(np.float32) + self.move(action)
        return state, Outcome(state, state @ PAYS.astype(np.float32), jnp.full(state.shape[:-1], self.ending))

    def move(self, action):
        return action @ B.T.astype(np.float32)


class WholeNumberWorld(LinearWorld):
    """x' = (x_2 + a, -x_1): no rounding anywhere, so that two ways of running it agree to the bit."""

    def step(self, state, action, *, luck):
        amount = action.astype(jnp.float32) - 1 if self.choices is not None else action[..., 0]
        state = jnp.stack([state[..., 1] + amount, -state[..., 0]], axis=-1)
        return state, Outcome(state, state[..., 0], jnp.full(state.shape[:-1], self.ending))


class ExplodingWorld(LinearWorld):
    """Everything grows by a million every step."""

    def step(self, state, action, *, luck):
        state = state * 1e6
        return state, Outcome(state, jnp.ones(state.shape[:-1]), jnp.zeros(state.shape[:-1]))


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


def still() -> FunctionPolicy:
    return FunctionPolicy(lambda seen: np.zeros((len(seen), 1)))


START = np.array([[1.0, 0.5], [-2.0, 1.0], [0.0, 3.0]], np.float32)


def run(world: World, policies: dict[str, Policy], *, horizon: int, start=START, seed: int = 0, **options):
    episodes = len(start) if start is not None else options.pop("episodes")
    return rollout(
        world, policies, start=start, episodes=episodes, horizon=horizon, key=jax.random.key(seed), **options
    )


def closed_form(feedback: np.ndarray, horizon: int, discount: float) -> np.ndarray:
    """sum_t discount^t PAYS . (A + B K)^(t+1) x_0."""
    matrix, power, total = A + B @ feedback, np.eye(2), np.zeros(2)
    for time in range(horizon):
        power = matrix @ power
        total += discount**time * (PAYS @ power)
    return START @ total


@pytest.mark.parametrize("horizon", [1, CHUNK, CHUNK + 3, LONG_CHUNK + 3])
def test_returns_equal_the_closed_form(horizon):
    policies = {"still": gain(0.0, 0.0), "pulls": gain(-0.5, -0.2)}
    imagined = run(make(), policies, horizon=horizon)
    for name, feedback in (("still", [[0.0, 0.0]]), ("pulls", [[-0.5, -0.2]])):
        assert imagined[name].length.tolist() == [horizon] * 3
        assert not imagined[name].terminated.any()
        np.testing.assert_allclose(
            imagined[name].returns(0.9), closed_form(np.array(feedback), horizon, 0.9), rtol=1e-4
        )


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


@pytest.mark.parametrize("actions", ["mean", "sample"])
def test_a_policy_acts_the_same_inside_and_outside_the_compiled_loop(actions):
    inside = gain(-1.0, 0.0, spread=0.5)
    outside = FunctionPolicy(
        lambda seen: -seen[:, :1], draw=lambda seen, *, key: np.asarray(inside.sample(seen, key=key))
    )
    imagined = run(
        make(WholeNumberWorld, ending=0.02),
        {"inside": inside, "outside": outside, "inside again": inside},
        horizon=CHUNK + 7,
        start=np.tile(START, (10, 1)),
        actions=actions,
    )
    assert list(imagined) == ["inside", "outside", "inside again"]
    assert same(imagined["inside"], imagined["outside"])
    assert same(imagined["inside"], imagined["inside again"])
    assert 0 < imagined["inside"].terminated.mean() < 1
    noisy = run(make(WholeNumberWorld), {"other": inside}, horizon=3, actions="sample")["other"]
    plain = run(make(WholeNumberWorld), {"other": inside}, horizon=3, actions="mean")["other"]
    assert not same(noisy, plain)


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


def test_numbers_do_not_depend_on_the_policies_beside():
    policies = {"a": gain(-0.5, -0.2), "b": mlp((5,), seed=0), "c": gain(0.1, 0.1)}
    world = make(ending=0.05)
    together = run(world, policies, horizon=20, actions="sample")
    for name, policy in policies.items():
        alone = run(world, {name: policy}, horizon=20, actions="sample")[name]
        assert together[name].length.tolist() == alone.length.tolist()
        np.testing.assert_allclose(together[name].returns(), alone.returns(), rtol=1e-5)


# Endings


def test_episodes_end_at_the_learnt_rate_and_with_the_same_luck_for_every_policy():
    world, start = make(ending=0.25), np.zeros((4000, 2), np.float32)
    imagined = run(world, {"a": gain(0.0, 0.0), "b": gain(1.0, 1.0)}, horizon=CHUNK, start=start)
    length = imagined["a"].length
    assert imagined["a"].terminated.all()
    # Geometric: mean 4, deviation sqrt(0.75) / 0.25 = 3.46.
    assert abs(length.mean() - 4) < 4 * 3.46 / np.sqrt(4000)
    np.testing.assert_allclose((length == 1).mean(), 0.25, atol=0.03)
    np.testing.assert_array_equal(length, imagined["b"].length)


def test_a_certain_ending_leaves_one_step():
    episodes = run(make(ending=1.0), {"a": gain(0.0, 0.0)}, horizon=CHUNK + 10)["a"]
    assert episodes.length.tolist() == [1, 1, 1]
    assert episodes.terminated.all()


def test_the_users_rule_ends_episodes_at_its_first_true():
    # Under a = 1 and x' = (x_2 + a, -x_1), the first numbers of (0, 0) are 1, 1, 0, 0, 1, 1, ...
    start = np.array([[0.0, 0.0], [0.0, 3.0], [10.0, 0.0]], np.float32)
    one = FunctionPolicy(lambda seen: np.ones((len(seen), 1)))
    plain = run(make(WholeNumberWorld), {"one": one}, horizon=8, start=start)["one"]
    ruled = run(
        make(WholeNumberWorld), {"one": one}, horizon=8, start=start, termination=lambda seen: seen[:, 0] >= 4
    )["one"]
    for index in range(3):
        row, step = plain.first_observation[index], plain.first_step[index]
        reached = np.flatnonzero(plain.observation[row + 1 : row + 9, 0] >= 4)
        length = reached[0] + 1 if len(reached) else 8
        assert ruled.length[index] == length
        assert ruled.terminated[index] == (len(reached) > 0)
        mine = ruled.first_step[index]
        np.testing.assert_array_equal(ruled.reward[mine : mine + length], plain.reward[step : step + length])
    assert sorted(set(ruled.terminated)) == [False, True]


def test_the_rule_is_asked_about_every_stretch():
    calls = []

    def second_time(seen: np.ndarray) -> np.ndarray:
        calls.append(len(seen))
        return np.full(len(seen), len(calls) == 2)

    start = np.zeros((FEW + 1, 2), np.float32)
    still = {"a": gain(0.0, 0.0)}
    episodes = run(make(), still, horizon=3 * CHUNK, start=start, termination=second_time)["a"]
    assert calls == [len(start) * CHUNK] * 2  # after the second stretch all have ended
    assert set(episodes.length.tolist()) == {CHUNK + 1}


def test_what_comes_after_an_ending_by_the_rule_need_not_be_finite():
    def large(seen: np.ndarray) -> np.ndarray:
        return np.abs(seen).max(1) > 1e10

    episodes = run(make(ExplodingWorld), {"a": still()}, horizon=20, termination=large)["a"]
    assert episodes.length.tolist() == [2, 2, 2]
    assert np.isfinite(episodes.observation).all()


def test_a_rule_that_does_not_answer_for_each_observation_is_refused():
    with pytest.raises(InputError, match="termination: for 15 observations it returned an array of shape"):
        run(make(), {"a": gain(0.0, 0.0)}, horizon=5, termination=lambda seen: True)


def drifting(force: float, *, outside: bool, calls: list[float] | None = None) -> Policy:
    """Turns x' = (x_2 + a, -x_1) into x' = (x_1 + force, -x_1)."""
    if not outside:
        return Drift(jnp.array(force))

    def act(seen: np.ndarray) -> np.ndarray:
        if calls is not None:
            calls.append(force)
        return seen[:, :1] - seen[:, 1:] + force

    return FunctionPolicy(act)


class Drift(Gain):
    spread: jax.Array = eqx.field(default_factory=lambda: jnp.array(0.0))

    def mean(self, observation):
        return observation[..., :1] - observation[..., 1:] + self.gain


@pytest.mark.parametrize("outside", [False, True])
def test_policies_that_have_ended_are_left_behind_and_nothing_changes(monkeypatch, outside):
    start = np.tile(START, (FEW, 1)).round()  # whole numbers
    calls: list[float] = []
    policies = {
        f"drifts {force}": drifting(force, outside=outside, calls=calls) for force in (1.0, 0.0, 3.0, 2.0)
    }
    asked = []

    def far(seen: np.ndarray) -> np.ndarray:
        asked.append(len(seen))
        return np.abs(seen[:, 0]) > 2 * CHUNK

    imagined = []
    for worth in (10**9, 1):
        monkeypatch.setattr("vlbm.rollout.WORTH", worth)
        horizon = 5 * CHUNK
        imagined.append(
            run(
                make(WholeNumberWorld),
                policies,
                horizon=horizon,
                start=start,
                termination=far,
                actions="mean",
            )
        )
    assert all(same(imagined[0][name], imagined[1][name]) for name in policies)
    assert {name: bool(part.terminated.all()) for name, part in imagined[0].items()} == {
        "drifts 1.0": True,
        "drifts 0.0": False,
        "drifts 3.0": True,
        "drifts 2.0": True,
    }
    # 3 and 2 end first, then 1: from four policies two go on, and then one.
    stretches = [count // (CHUNK * len(start)) for count in asked]
    assert stretches[:5] == [4] * 5
    assert stretches[5:] == sorted(stretches[5:], reverse=True)
    assert set(stretches[5:]) == {4, 2, 1}
    if outside:
        assert calls.count(0.0) == 10 * CHUNK > calls.count(1.0) > calls.count(3.0)


def with_and_without_seats(monkeypatch, world: World, policies: dict[str, Policy], **options):
    """The same roll-out where nothing is left behind and where everything is that can be."""
    imagined = []
    for worth in (10**9, 1):
        monkeypatch.setattr("vlbm.rollout.WORTH", worth)
        imagined.append(run(world, policies, horizon=4 * CHUNK, **options))
    return imagined


def check_same_but_rounding(plain: dict[str, Episodes], seated: dict[str, Episodes]) -> None:
    for name, episodes in plain.items():
        np.testing.assert_array_equal(seated[name].length, episodes.length)
        np.testing.assert_array_equal(seated[name].terminated, episodes.terminated)
        for part in ("observation", "action", "reward"):
            np.testing.assert_allclose(
                getattr(seated[name], part), getattr(episodes, part), rtol=1e-3, atol=1e-3
            )


@pytest.mark.parametrize("actions", ["mean", "sample"])
@pytest.mark.parametrize("outside", [False, True])
def test_single_episodes_that_have_ended_are_left_behind_and_nothing_changes(monkeypatch, outside, actions):
    limit = 3 * CHUNK
    # Of each policy one episode in six has far to go, each another one.
    start = np.zeros((2 * FEW, 2), np.float32)
    start[:, 0] = np.where(np.arange(len(start)) % 6 == 2, 0, limit - 20)
    inside = {f"drifts {force}": Drift(jnp.array(force), jnp.array(0.3)) for force in (0.5, 1.0, 2.0)}

    def called(policy: Drift) -> FunctionPolicy:
        draw = jax.jit(lambda seen, key: policy.sample(seen, key=key))
        return FunctionPolicy(
            lambda seen: np.asarray(policy.mean(seen)), draw=lambda seen, *, key: np.asarray(draw(seen, key))
        )

    policies = {name: called(policy) if outside else policy for name, policy in inside.items()}
    asked = []

    def far(seen: np.ndarray) -> np.ndarray:
        asked.append(len(seen) // CHUNK)
        return seen[:, 0] > limit

    world = make(WholeNumberWorld, ending=0.002)
    plain, seated = with_and_without_seats(
        monkeypatch, world, policies, start=start, termination=far, actions=actions
    )
    check_same_but_rounding(plain, seated)
    rows = len(policies) * len(start)
    assert asked[:4] == [rows] * 4
    assert asked[4] == rows >= 4 * asked[-1] > 0
    lengths = plain["drifts 0.5"].length
    assert lengths.min() < CHUNK < lengths.max()


SMALL = {
    "vlbm": VLBM(branches=2, latents=3, units=6, head_units=(6,), sampling="all", reencode_every=7),
    "ff": FeedForward(units=(6,), members=3, sampling="all", ensemble="step"),
    "ar": AutoRegressive(units=(6,), members=2, sampling="all"),
}


@pytest.mark.parametrize("method", SMALL)
def test_a_learnt_world_gives_the_same_inside_and_outside_the_compiled_loop(method):
    logs = walks(8, 40)
    world = SMALL[method].make_world(logs, key=jax.random.key(0))
    policies = {"a": mlp((5,), seed=0), "b": mlp((5,), seed=1)}
    called = {name: FunctionPolicy(policy.mean) for name, policy in policies.items()}
    options = {"start": logs.initial_observations(), "horizon": 2 * CHUNK, "actions": "mean"}
    check_same_but_rounding(run(world, policies, **options), run(world, called, **options))


@pytest.mark.parametrize("method", SMALL)
def test_in_a_learnt_world_every_episode_keeps_its_own_luck(monkeypatch, method):
    logs = walks(8, 40)
    world = SMALL[method].make_world(logs, key=jax.random.key(0))
    policies = {"a": mlp((5,), seed=0), "b": mlp((5,), seed=1), "c": mlp((5,), seed=2)}
    options = {"start": np.tile(logs.initial_observations(), (3, 1)), "actions": "sample"}
    free = run(world, policies, horizon=CHUNK, **options)
    reached = [part.observation[:, 0].reshape(24, -1).max(axis=1) for part in free.values()]
    limit = np.quantile(np.stack(reached), 0.2)  # four of five get there at once
    plain, seated = with_and_without_seats(
        monkeypatch, world, policies, termination=lambda seen: seen[:, 0] >= limit, **options
    )
    check_same_but_rounding(plain, seated)
    assert max(part.length.max() for part in plain.values()) > CHUNK
    assert np.std([part.reward.mean() for part in plain.values()]) > 0


# What leaves the numbers


def test_a_traced_policy_that_returns_nan_is_named_with_the_step():
    policies = {"good": gain(0.0, 0.0), "bad": gain(np.nan, 0.0)}
    with pytest.raises(InputError, match="policy 'bad' returned actions that are not finite, at step 0"):
        run(make(), policies, horizon=5)


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


def test_a_model_that_leaves_the_numbers_is_reported_with_policy_and_step():
    with pytest.raises(
        InputError, match="the model imagined observations that are not finite under policy 'a', at step 6"
    ):
        run(make(ExplodingWorld), {"a": still()}, horizon=20)


# Discrete actions and the prior


def test_action_ids_come_through_as_they_were_chosen():
    world = make(WholeNumberWorld, actions=3, choices=3)
    policies = {
        "function": FunctionPolicy(lambda seen: (seen[:, 0] > 0).astype(int) * 2),
        "network": mlp((4,), seed=0, outputs=3, distribution="greedy"),
    }
    imagined = run(world, policies, horizon=6)
    chosen = imagined["function"]
    assert chosen.choices == 3
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


def test_another_seed_gives_other_luck_and_the_same_seed_the_same():
    world, start = make(ending=0.2), np.zeros((50, 2), np.float32)
    first, again, other = (
        run(world, {"a": gain(0.0, 0.0)}, horizon=20, start=start, seed=seed)["a"] for seed in (0, 0, 1)
    )
    assert same(first, again)
    assert first.length.tolist() != other.length.tolist()
