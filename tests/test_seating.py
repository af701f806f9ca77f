"""Seating: which imagined episodes go on, and where they sit."""

from __future__ import annotations

import numpy as np
import pytest

from vlbm.seating import Seating


def ended_but(policies: int, episodes: int, *going_on: tuple[int, int]) -> np.ndarray:
    ended = np.ones((policies, episodes), bool)
    for place in going_on:
        ended[place] = False
    return ended


def test_everyone_is_there_at_first():
    seating = Seating.everyone(2, 3)
    assert seating.policy.tolist() == [0, 1]
    assert seating.episode.tolist() == [[0, 1, 2]] * 2


def test_those_that_go_on_keep_a_seat_and_their_order():
    remaining = Seating.everyone(3, 8).remaining(ended_but(3, 8, (0, 6), (0, 1), (2, 5)), lots=1)
    assert remaining.policy.tolist() == [0, 2]
    assert remaining.episode[0].tolist() == [1, 6]
    assert 5 in remaining.episode[1]


@pytest.mark.parametrize(("alive", "seats"), [(50, 50), (26, 50), (25, 25), (14, 25), (13, 13), (1, 1)])
def test_seats_are_halved_so_that_there_are_few_shapes(alive, seats):
    ended = np.arange(50)[None] >= alive
    assert Seating.everyone(1, 50).remaining(ended, lots=1).episode.shape == (1, seats)


def test_every_lot_keeps_equally_many():
    seating, ended = Seating.everyone(1, 8), ended_but(1, 8, (0, 0), (0, 1), (0, 6))
    remaining = seating.remaining(ended, lots=2)
    first, second = remaining.episode.reshape(2, -1)
    assert first.tolist() == [0, 1]
    assert 6 in second
    assert set(second) < {4, 5, 6, 7}
    assert remaining.in_lots(2, 4).tolist() == [[first.tolist()], [(second - 4).tolist()]]


def test_a_choice_among_those_that_were_chosen_knows_the_first_numbers():
    seating = Seating.everyone(3, 8)
    for ended in (ended_but(3, 8, (1, 2), (1, 3), (2, 6), (2, 7)), ended_but(3, 8, (2, 7))):
        seating = seating.among(seating.remaining(ended, lots=1))
    assert seating.policy.tolist() == [2]
    assert seating.episode.tolist() == [[7]]


def test_where_all_have_ended_nobody_is_left():
    assert Seating.everyone(2, 4).remaining(np.ones((2, 4), bool), lots=2).episode.size == 0
