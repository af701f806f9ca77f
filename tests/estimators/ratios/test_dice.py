"""DICE: the saddle point is the exact ratio, ends and horizons count, and what breaks is said."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.data.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimators.ratios.dice import DICE
from vlbm.estimators.ratios.objective import Lagrangian
from vlbm.estimators.registry import make_estimator
from vlbm.policies import Layer, MLPPolicy

# Networks as small as can be: everything observed is the same, so ratios are a few constants.
SMALL = ("units=8", "steps=20", "batch=64", "resamples=200")
LENGTH = 5
NAMES = ("dice", "dualdice", "gendice")


def small(name: str = "dice", *settings: str) -> Any:
    return make_estimator(name, settings=(*SMALL, *settings))


def blind(*probability: float) -> MLPPolicy:
    """Chooses ids with these probabilities, whatever it sees."""
    return MLPPolicy(
        (),
        Layer(np.zeros((len(probability), 1), np.float32), np.log(np.array(probability, np.float32))),
        nonlinearity="relu",
        distribution="categorical",
    )


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
        choices=2,
    )


def evaluate(settings: Any, episodes: Episodes, policies: Any, **options: Any):
    options = {"discount": 0.9, "horizon": math.inf, "actions": "sample", **options}
    return settings.fit(episodes).evaluate(policies, **options)


@dataclass(frozen=True)
class Exact:
    """A process with three states and two actions that may end, logged with any distribution."""

    discount: float = 0.9

    def __post_init__(self) -> None:
        random = np.random.default_rng(3)
        goes = random.dirichlet(np.ones(4), size=6)  # to one of three states, or to the end
        policy = random.dirichlet(np.ones(2), size=3)
        start = np.array([0.7, 0.2, 0.1])
        values: dict[str, Any] = {
            "goes": goes,
            "reward": random.normal(size=6),
            "logged": random.dirichlet(np.full(6, 5.0)),
            "begin": (start[:, None] * policy).ravel(),
            "step": np.einsum("is,sa->isa", goes[:, :3], policy).reshape(6, 6),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    goes: Any = None
    reward: Any = None
    logged: Any = None
    begin: Any = None
    step: Any = None

    @property
    def ending(self) -> np.ndarray:
        """How much of everything ends with a state and action: by the system, or by discounting."""
        return 1 - self.discount * self.goes[:, :3].sum(axis=1)

    @property
    def share(self) -> float:
        return float(self.logged @ self.ending)

    @property
    def visits(self) -> np.ndarray:
        return np.linalg.solve(np.eye(6) - self.discount * self.step.T, self.begin)

    @property
    def ratio(self) -> np.ndarray:
        return self.share * self.visits / self.logged

    def height(self, game: Lagrangian, value: Any, ratio: Any, multiplier: Any) -> Any:
        """The expectation of the Lagrangian over the log: a sum over what can happen in a step."""
        before, after = np.divmod(np.arange(24), 4)  # after: one of three states, or the end
        goes_on = (after < 3).astype(float)
        weight = self.logged[before] * self.goes.ravel()
        ahead = jnp.append((jnp.asarray(self._policy) * value.reshape(3, 2)).sum(axis=1), 0.0)
        steps = game.steps(
            value[before],
            ahead[after],
            ratio[before],
            multiplier=multiplier,
            reward=jnp.asarray(self.reward[before]),
            continuation=jnp.asarray(self.discount * goes_on),
            share=jnp.asarray(self.share),
        )
        beginnings = game.beginnings(value, multiplier=multiplier, share=jnp.asarray(self.share))
        return weight @ steps + self.begin @ beginnings

    @property
    def _policy(self) -> np.ndarray:
        pairs = self.begin.reshape(3, 2)
        return pairs / pairs.sum(axis=1, keepdims=True)

    def values(self, game: Lagrangian, multiplier: float) -> np.ndarray:
        """The values that leave ratios no slope."""
        pay = self.reward * game.reward - game.dual_regulariser * self.ratio
        pay = pay - game.normalised * multiplier * self.ending / self.share
        return np.linalg.solve(np.eye(6) - self.discount * self.step, pay)


@pytest.mark.parametrize("name", NAMES)
def test_the_exact_ratio_is_the_saddle_point_of_every_setting(name):
    exact, game = Exact(), make_estimator(name).lagrangian
    multiplier = 0.3 if game.normalised and not game.primal_regulariser else 0.0
    found = (exact.values(game, multiplier), exact.ratio, multiplier)
    if game.primal_regulariser:  # values cost something, and without rewards they need not say anything
        np.testing.assert_allclose(found[0], 0.0, atol=1e-12)

    def slopes(ratio: np.ndarray) -> list[np.ndarray]:
        point = [jnp.asarray(part, jnp.float32) for part in (found[0], ratio, found[2])]
        gradient = jax.grad(lambda *players: exact.height(game, *players), argnums=(0, 1, 2))(*point)
        return [np.asarray(part) for part in gradient]

    for slope in slopes(exact.ratio):
        np.testing.assert_allclose(slope, 0.0, atol=1e-5)
    assert np.abs(slopes(1.1 * exact.ratio)[0]).max() > 1e-3


def test_exact_ratios_give_the_exact_value_and_let_as_much_end_as_begins():
    exact = Exact()
    worth = exact.begin @ np.linalg.solve(np.eye(6) - exact.discount * exact.step, exact.reward)
    assert exact.logged @ (exact.ratio * exact.reward) / exact.share == pytest.approx(worth)
    assert exact.logged @ (exact.ratio * exact.ending) == pytest.approx(exact.share)


@pytest.mark.parametrize("name", NAMES)
def test_a_cut_off_episode_goes_on_and_one_that_ended_does_not(name):
    policies = {"even": blind(0.5, 0.5), "eager": blind(0.2, 0.8)}
    for terminated, stays in ((False, 1.0), (True, 1 - 1 / LENGTH)):
        even, eager = evaluate(small(name), constant(terminated=terminated, share=0.4), policies)
        assert even.value == pytest.approx(1 / (1 - 0.9 * stays), rel=0.01)
        assert eager.value == pytest.approx(1.6 / (1 - 0.9 * stays), rel=0.01)
        assert even.warnings == eager.warnings == ()
        assert even.details["mean_ratio"] == pytest.approx(1.0, abs=0.02)


def test_with_a_horizon_nothing_is_earned_after_it_whatever_the_discount():
    for discount, expected in ((0.9, 1 + 0.9 + 0.81), (1.0, 3.0)):
        (found,) = evaluate(
            small("dice", "units=16"),
            constant(terminated=False),
            blind(0.5, 0.5),
            discount=discount,
            horizon=3,
        )
        assert found.value == pytest.approx(expected, rel=0.05)
    with pytest.raises(InputError, match="discount 1: without a horizon"):
        evaluate(small(), constant(terminated=False), blind(0.5, 0.5), discount=1.0)


def test_a_policy_that_does_what_the_log_never_shows_is_warned_of():
    logs = replace(constant(terminated=False), action=np.zeros(100 * LENGTH, np.int64))
    (row,) = evaluate(small(), logs, blind(1e-6, 1 - 1e-6))
    assert any("do not balance" in text for text in row.warnings)
    assert np.isfinite([row.value, row.lower, row.upper, *row.details.values()]).all()


def test_divergent_networks_are_warned_of_and_still_give_numbers():
    wild = small("dualdice", "learning_rate=1e38", "layer_norm=false", "clip=none")
    (row,) = evaluate(wild, constant(terminated=False), blind(0.5, 0.5))
    assert any("diverged" in text for text in row.warnings)
    assert np.isfinite([row.value, row.standard_error, row.lower, row.upper, *row.details.values()]).all()


def test_an_asymptotic_interval_is_about_that_of_the_bootstrap():
    random = np.random.default_rng(0)
    logs = constant(terminated=True)
    logs = replace(logs, reward=logs.reward + random.normal(size=logs.steps).astype(np.float32))
    rows = [
        evaluate(small("dice", f"interval={kind}", "resamples=1000"), logs, blind(0.5, 0.5))[0]
        for kind in ("bootstrap", "asymptotic")
    ]
    assert rows[0].value == rows[1].value
    assert rows[1].standard_error == pytest.approx(rows[0].standard_error, rel=0.2)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("steps", 0),
        ("units", ()),
        ("averaging", 0.0),
        ("learning_rate", -1.0),
        ("interval", "none"),
        ("dual_regulariser", -1.0),
        ("dual_regulariser", 0.0),
        ("primal_regulariser", 1.0),
    ],
)
def test_bad_settings_are_named(setting, value):
    with pytest.raises(InputError, match=setting):
        DICE(**{setting: value})
