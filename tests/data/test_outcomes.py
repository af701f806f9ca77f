"""Steps whose outcome was not recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from systems import noise_logs
from vlbm.data.outcomes import describe_left_out, share_of_reward
from vlbm.errors import InputError


def log_with_final_rewards(share: float):
    """Ten episodes of five steps; the last ones earn that share of the reward, in absolute terms."""
    logs = replace(noise_logs((5,) * 10), final_observed=np.zeros(10, bool))
    reward = np.full(50, (1 - share) / 4, np.float32)
    reward[4::5] = -share
    return replace(logs, reward=reward)


def test_the_share_is_of_absolute_rewards():
    logs = log_with_final_rewards(0.25)
    assert share_of_reward(logs, ~logs.outcome_known) == pytest.approx(0.25)
    assert share_of_reward(replace(logs, reward=np.zeros(50)), ~logs.outcome_known) == 0


def test_what_is_left_out_is_said_with_its_reward():
    logs = log_with_final_rewards(0.08)
    (said,) = describe_left_out(logs, ~logs.outcome_known)
    assert "the last step of 10 of 10 episodes" in said
    assert "with 8.0% of the reward" in said
    assert describe_left_out(logs, np.zeros(50, bool)) == []


def test_too_much_reward_is_an_error_that_names_the_remedies():
    logs = log_with_final_rewards(0.9)
    with pytest.raises(InputError, match=r"10 of 10 episodes .* 90% of the reward") as caught:
        describe_left_out(logs, ~logs.outcome_known)
    assert "a column that says which episodes terminated, or next observations" in str(caught.value)


def test_a_log_of_nothing_else_is_refused_even_if_it_earns_nothing():
    logs = replace(noise_logs((1, 1)), final_observed=np.zeros(2, bool), reward=np.zeros(2, np.float32))
    with pytest.raises(InputError, match="2 of 2 episodes"):
        describe_left_out(logs, ~logs.outcome_known)
