"""Leaps: where values are linear in what critics see, one solves the Bellman equation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vlbm.data.scaler import Scaler
from vlbm.estimators.critics.bellman import Problem, Shape
from vlbm.estimators.critics.choices import Choices
from vlbm.estimators.critics.leap import leap, probe_size, solved
from vlbm.estimators.critics.lots import Asked
from vlbm.estimators.critics.networks import Critics
from vlbm.suites.exact import SYSTEMS


def critics(policies: int, **changes: Any) -> Critics:
    settings: dict[str, Any] = {
        "copies": 1,
        "observations": 2,
        "features": 0,
        "actions": 1,
        "discrete": False,
        "units": (8,),
        "layer_norm": True,
        "quadratic": True,
        "random": np.random.default_rng(0),
    }
    return Critics(policies=policies, **{**settings, **changes})


def test_quadratic_values_are_found_without_any_training():
    system: Any = SYSTEMS["linear"]()
    logs = system.sample(system.behaviour, episodes=1500, seed=0)
    scaler, action_scaler = Scaler.fit(logs.observation), Scaler.fit(logs.action)
    logged = Problem(logs, 0.95, None, scaler, action_scaler).logged(np.ones((logs.count, 1)))
    choices = Choices(
        system.targets,
        logs.observation,
        action_size=1,
        discrete=False,
        actions="sample",
        draws=1,
        key=jax.random.key(0),
        scaler=action_scaler,
    )
    shape = Shape(len(system.targets), 1, False, False)
    table = choices.table()
    step = np.arange(logs.steps)
    choice = Asked(jnp.asarray(table), jnp.asarray(logs.observation_before + 1))
    found = critics(shape.policies)
    # No leap goes farther than values are spread, so it takes a few.
    for _ in range(5):
        found = found.corrected(leap(found, logged, step, choice, shape))
    first = logs.first_observation
    values, _ = logged.state_values(found, jnp.asarray(first), jnp.asarray(table[first]), shape)
    values = float(logged.offset) + float(logged.unit) * np.asarray(values).mean(axis=-1)[0]
    truth = [system.value(policy, discount=0.95, horizon=None) for policy in system.targets.values()]
    np.testing.assert_allclose(values, truth, rtol=0.08)


def test_a_leap_looks_at_as_many_steps_in_company_as_alone():
    assert probe_size(critics(11)) == probe_size(critics(1))
    assert probe_size(critics(1, units=(64,))) < probe_size(critics(1))


def test_quadratic_parts_are_left_out_where_there_would_be_too_many_products():
    assert critics(1, observations=17, actions=6).quadratic is not None
    assert critics(1, observations=27, actions=8).quadratic is None
    assert critics(1, quadratic=False).quadratic is None
    assert critics(1, discrete=True, actions=3).quadratic is None


def test_equations_without_an_answer_leave_the_others_theirs():
    square = np.stack([np.diag([2.0, 4.0]), np.zeros((2, 2))])[None]
    found = solved(square, np.ones((1, 2, 2)), np.zeros((1, 2)), ridge=1.0)
    np.testing.assert_allclose(found[0, 0], [0.5, 0.25])
    assert np.isnan(found[0, 1]).all()
