"""Policies that do not fit, and answers that are no actions."""

from __future__ import annotations

import numpy as np
import pytest

from vlbm.errors import InputError
from vlbm.policies import FunctionPolicy, check_actions, check_fit


def test_sizes_that_differ_from_the_data_are_named(make_policy):
    policies = {"fits": make_policy(), "unknown": FunctionPolicy(lambda rows: rows), "x": make_policy()}
    check_fit(policies, observation_size=3, action_size=2, discrete=False)
    with pytest.raises(InputError, match="policy 'fits' wants 3 observations, the data have 17"):
        check_fit(policies, observation_size=17, action_size=2, discrete=False)
    with pytest.raises(InputError, match=r"gives action vectors of 2 numbers, the data have .* of 6 numbers"):
        check_fit(policies, observation_size=3, action_size=6, discrete=False)
    with pytest.raises(
        InputError, match="gives action vectors of 2 numbers, the data have 2 discrete actions"
    ):
        check_fit(policies, observation_size=3, action_size=2, discrete=True)


def test_the_number_of_discrete_actions_must_agree(make_policy):
    policies = {"x": make_policy(distribution="categorical", spread=False)}
    check_fit(policies, observation_size=3, action_size=2, discrete=True)
    with pytest.raises(InputError, match="policy 'x' gives 2 discrete actions, the data have 5 discrete"):
        check_fit(policies, observation_size=3, action_size=5, discrete=True)


def test_good_actions_pass_in_our_types():
    vectors = check_actions("x", [[1.0, 2.0]] * 3, batch=3, action_size=2, discrete=False)
    assert vectors.dtype == np.float32
    assert check_actions("x", np.zeros(3), batch=3, action_size=1, discrete=False).shape == (3, 1)
    assert check_actions("x", np.zeros((3, 2)), batch=3, action_size=None, discrete=False).shape == (3, 2)
    ids = check_actions("x", np.array([[0.0], [1.0]]), batch=2, action_size=2, discrete=True)
    assert ids.dtype == np.int32
    np.testing.assert_array_equal(ids, [0, 1])


@pytest.mark.parametrize(
    ("action", "discrete", "message"),
    [
        (np.zeros((3, 4)), False, r"gave actions of shape \(3, 4\), expected \(3, 2\)"),
        (np.zeros(2), False, r"gave actions of shape \(2,\)"),
        (np.float32(1), False, r"gave actions of shape \(\)"),
        (np.zeros((3, 2)), True, r"expected \(3,\): one id per observation"),
        ([[0, 0], [0, np.nan], [0, 0]], False, "not finite, for observation 1 of 3"),
        ([0, np.inf, 0], True, "not finite"),
        ([0, 0.5, 0], True, "gave the action 0.5, not a whole number"),
        ([0, 2, 0], True, "chose action 2, the data have 0 to 1"),
        ([0, -1, 0], True, "chose action -1"),
        ([[0], [0, 1], [2]], False, "form no array"),
        (["a", "b", "c"], True, "not numbers"),
        (None, False, "not numbers"),
    ],
)
def test_wrong_actions_are_refused_in_the_name_of_the_policy(action, discrete, message):
    with pytest.raises(InputError, match=f"policy 'greedy' .*{message}"):
        check_actions("greedy", action, batch=3, action_size=2, discrete=discrete)


def test_ids_are_not_taken_for_vectors_of_one_number():
    with pytest.raises(InputError, match=r"policy 'greedy' gave whole numbers.*vectors of 1 numbers"):
        check_actions("greedy", np.zeros(3, int), batch=3, action_size=1, discrete=False)
    assert check_actions("x", np.zeros((3, 1), int), batch=3, action_size=1, discrete=False).shape == (3, 1)


def test_an_action_without_a_known_size_still_has_a_vector_per_observation():
    with pytest.raises(InputError, match=r"shape \(\)"):
        check_actions("x", 1.0, batch=3, action_size=None, discrete=False)
