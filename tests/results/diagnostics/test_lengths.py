"""Imagined episodes that never end."""

from __future__ import annotations

from systems import noise_logs
from vlbm.results.diagnostics.lengths import length_warnings

ENDED = noise_logs([6, 8, 10, 20], terminated=[True, True, True, False])
ENDLESS = [noise_logs([20, 20]), noise_logs([20, 20])]


def test_episodes_that_all_reach_the_horizon_are_warned_of_where_logged_ones_ended():
    (warning,) = length_warnings(ENDLESS, ENDED, 20)
    assert "every imagined episode goes on to the horizon of 20 steps, but 75% of logged ones" in warning
    assert "--horizon 8" in warning


def test_one_that_ends_is_enough():
    some = [*ENDLESS, noise_logs([20, 7])]
    assert length_warnings(some, ENDED, 20) == ()


def test_a_horizon_that_all_logged_episodes_reach_is_none_to_warn_of():
    assert length_warnings(ENDLESS, noise_logs([20, 20, 25]), 20) == ()


def test_what_lies_beyond_all_logged_episodes_is_guessed():
    (warning,) = length_warnings(ENDLESS, noise_logs([12, 15]), 20)
    assert "no logged one is longer than 15" in warning
    assert "--horizon 15" in warning
