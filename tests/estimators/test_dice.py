"""DICE: the saddle point is the exact ratio, ends and horizons count, and bad settings are named."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from systems import blind
from vlbm.data.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimators.dice import DICE, initial_term, reverse_gradient, solve_saddle_point, step_term
from vlbm.estimators.registry import make_estimator

# Networks as small as can be: everything observed is the same, so ratios are a few constants.
SMALL = ("units=8", "steps=20", "batch=64", "resamples=200")
LENGTH = 5
NAMES = ("dice", "dualdice", "gendice")


def small(name: str = "dice", *settings: str) -> Any:
    return make_estimator(name, settings=(*SMALL, *settings))


def constant(*, terminated: bool, share: float = 0.5, episodes: int = 100) -> Episodes:
    """Action 0 pays 0 and action 1 pays 2; nothing is ever seen. Action 1 has this share at every time."""
    rank = (np.arange(episodes)[:, None] * 7 + np.arange(LENGTH) * 3) % 10
    action = (rank < 10 * share).astype(np.int64).ravel()
    return Episodes(
        observation=np.zeros((episodes * (LENGTH + 1), 1), np.float32),
        action=action,
        reward=2.0 * action.astype(np.float32),
        length=np.full(episodes, LENGTH),
        terminated=np.full(episodes, terminated),
        n_actions=2,
    )


def evaluate(settings: Any, episodes: Episodes, policies: Any, **options: Any):
    options = {"discount": 0.9, "horizon": math.inf, "actions": "sample", **options}
    return settings.fit(episodes).evaluate(policies, **options)


class Exact:
    """A process with three states and two actions that may end, logged with any distribution."""

    def __init__(self, discount: float = 0.9):
        random = np.random.default_rng(3)
        self.discount = discount
        self.goes = random.dirichlet(np.ones(4), size=6)  # to one of three states, or to the end
        self.policy = random.dirichlet(np.ones(2), size=3)
        self.reward = random.normal(size=6)
        self.logged = random.dirichlet(np.full(6, 5.0))
        self.begin = (np.array([0.7, 0.2, 0.1])[:, None] * self.policy).ravel()
        self.step = np.einsum("is,sa->isa", self.goes[:, :3], self.policy).reshape(6, 6)
        self.ending = 1 - discount * self.goes[:, :3].sum(axis=1)  # by the system, or by the discount
        self.end_rate = float(self.logged @ self.ending)
        visits = np.linalg.solve(np.eye(6) - discount * self.step.T, self.begin)
        self.ratio = self.end_rate * visits / self.logged

    def expect(self, settings: DICE, value: Any, ratio: Any, multiplier: Any) -> Any:
        """The expectation of the Lagrangian over the log: a sum over what can happen in a step."""
        before, after = np.divmod(np.arange(24), 4)  # after: one of three states, or the end
        weight = self.logged[before] * self.goes.ravel()
        ahead = jnp.append((jnp.asarray(self.policy) * value.reshape(3, 2)).sum(axis=1), 0.0)
        steps = step_term(
            settings,
            ratio[before],
            value[before],
            ahead[after],
            multiplier,
            reward=jnp.asarray(self.reward[before]),
            continuation=jnp.asarray(self.discount * (after < 3)),
            end_rate=jnp.asarray(self.end_rate),
        )
        initial = initial_term(settings, value, multiplier, jnp.asarray(self.end_rate))
        return weight @ steps + self.begin @ initial

    def solve_values(self, settings: DICE, multiplier: float) -> np.ndarray:
        """The values that leave ratios no slope."""
        pay = self.reward * settings.reward - settings.dual_regulariser * self.ratio
        pay = pay - settings.normalised * multiplier * self.ending / self.end_rate
        return np.linalg.solve(np.eye(6) - self.discount * self.step, pay)


@pytest.mark.parametrize("name", NAMES)
def test_the_exact_ratio_is_the_saddle_point_of_every_setting(name):
    exact, settings = Exact(), make_estimator(name)
    multiplier = 0.3 if settings.normalised and not settings.primal_regulariser else 0.0
    value = exact.solve_values(settings, multiplier)
    if settings.primal_regulariser:  # values cost something, and without rewards they need not say anything
        np.testing.assert_allclose(value, 0.0, atol=1e-12)

    def slopes(ratio: np.ndarray) -> list[np.ndarray]:
        point = [jnp.asarray(part, jnp.float32) for part in (value, ratio, multiplier)]
        gradient = jax.grad(lambda *variables: exact.expect(settings, *variables), argnums=(0, 1, 2))(*point)
        return [np.asarray(part) for part in gradient]

    for slope in slopes(exact.ratio):
        np.testing.assert_allclose(slope, 0.0, atol=1e-5)
    assert np.abs(slopes(1.1 * exact.ratio)[0]).max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_with_a_feature_for_every_state_and_action_the_linear_solve_gives_the_exact_ratio(name):
    exact, square = Exact(), np.diag(Exact().logged)
    flow = exact.logged[:, None] * (np.eye(6) - exact.discount * exact.step)
    ends = exact.logged * exact.ending / exact.end_rate  # what the multiplier loses
    found = solve_saddle_point(
        make_estimator(name),
        zeta_square=square,
        nu_square=np.pad(square, (0, 1)),
        flow=np.column_stack([flow, ends]),
        earned=exact.logged * exact.reward,
        initial=np.append(exact.end_rate * exact.begin, 1.0),
    )
    np.testing.assert_allclose(found, exact.ratio, rtol=2e-3, atol=1e-3)


def test_exact_ratios_give_the_exact_value_and_let_as_much_end_as_begins():
    exact = Exact()
    worth = exact.begin @ np.linalg.solve(np.eye(6) - exact.discount * exact.step, exact.reward)
    assert exact.logged @ (exact.ratio * exact.reward) / exact.end_rate == pytest.approx(worth)
    assert exact.logged @ (exact.ratio * exact.ending) == pytest.approx(exact.end_rate)


def test_what_ascends_is_the_same_with_the_opposite_gradient():
    value, slope = jax.value_and_grad(lambda x: reverse_gradient(x) ** 2)(3.0)
    assert (value, slope) == (9.0, -6.0)


@pytest.mark.parametrize(
    "name", ["dice", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])]
)
def test_a_cut_off_episode_goes_on_and_one_that_ended_does_not(name):
    policies = {"even": blind(0.5, 0.5), "eager": blind(0.2, 0.8)}
    for terminated, stays in ((False, 1.0), (True, 1 - 1 / LENGTH)):
        even, eager = evaluate(small(name), constant(terminated=terminated, share=0.4), policies)
        assert even.value == pytest.approx(1 / (1 - 0.9 * stays), rel=0.01)
        assert eager.value == pytest.approx(1.6 / (1 - 0.9 * stays), rel=0.01)
        assert even.warnings == eager.warnings == ()
        assert even.details["mean_ratio"] == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(("discount", "expected"), [(0.9, 1 + 0.9 + 0.81), (1.0, 3.0)])
def test_with_a_horizon_nothing_is_earned_after_it_whatever_the_discount(discount, expected):
    (found,) = evaluate(
        small("dice", "units=16"), constant(terminated=False), blind(0.5, 0.5), discount=discount, horizon=3
    )
    assert found.value == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("steps", 0),
        ("rounds", 0),
        ("units", ()),
        ("averaging", 0.0),
        ("learning_rate", -1.0),
        ("dual_regulariser", -1.0),
        ("dual_regulariser", 0.0),
        ("primal_regulariser", 1.0),
    ],
)
def test_bad_settings_are_named(setting, value):
    with pytest.raises(InputError, match=setting):
        DICE(**{setting: value})
