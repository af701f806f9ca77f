"""What an inspection finds."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from vlbm.data.episodes import Episodes, concatenate
from vlbm.data.inspect import Inspection, inspect, render


@pytest.fixture
def sound() -> Episodes:
    """Forty episodes of ten to twelve steps with nothing wrong."""
    rng = np.random.default_rng(0)
    length = 10 + np.arange(40) % 3
    steps = int(length.sum())
    return Episodes(
        observation=rng.normal(size=(steps + 40, 3)).astype(np.float32),
        action=rng.uniform(-1, 1, size=(steps, 2)).astype(np.float32),
        reward=rng.normal(size=steps).astype(np.float32),
        length=length,
        terminated=np.arange(40) % 4 == 0,
        log_prob=rng.normal(size=steps).astype(np.float32),
    )


def test_facts_are_exact():
    episodes = Episodes(
        observation=np.zeros((9, 1), np.float32),
        action=np.array([[-2.0], [0.5], [1.0], [0.0], [0.0], [0.0]], np.float32),
        reward=np.array([1, 2, 4, 8, 16, 32], np.float32),
        length=np.array([3, 1, 2]),
        terminated=np.array([True, False, True]),
        notes=("assumed",),
    )
    found = inspect(episodes, discount=0.5)
    assert (found.episodes, found.steps) == (3, 6)
    assert found.length == (1, 2, 3)
    assert found.returns == (7, 21, 48)
    assert found.discounted_returns == (3, pytest.approx(43 / 3), 32)
    assert found.discount == 0.5
    assert found.terminated == pytest.approx(2 / 3)
    assert (found.observation_size, found.action_size, found.discrete) == (1, 1, False)
    assert found.action_range == ((-2.0, 1.0),)
    assert found.action_counts == ()
    assert not found.has_log_prob
    assert found.missing[0].startswith("log-probabilities of the actions")
    assert found.assumptions == ("assumed",)
    assert found.information == ("actions leave [-1, 1] in dimension 0",)


def test_returns_are_discounted_as_in_the_paper_by_default(sound):
    assert inspect(sound).discount == 0.995
    assert inspect(sound).discounted_returns.middle == pytest.approx(sound.returns(0.995).mean())


def test_sound_episodes_raise_no_warning(sound):
    found = inspect(sound)
    assert found.warnings == ()
    assert found.missing == ()
    assert found.information == ()


def test_discrete_actions_are_counted(sound):
    found = inspect(replace(sound, action=np.arange(sound.steps) % 3, n_actions=5))
    assert found.action_counts == (147, 146, 146, 0, 0)
    assert found.action_range == ()
    assert found.information == ("never taken: actions 3, 4; policies that take them cannot be evaluated",)


def changed(array, place, value):
    copy = array.copy()
    copy[place] = value
    return copy


def one_step() -> Episodes:
    return Episodes(
        observation=np.ones((2, 3), np.float32),
        action=np.zeros((1, 2), np.float32),
        reward=np.zeros(1, np.float32),
        length=np.array([1]),
        terminated=np.array([True]),
    )


CASES = {
    "observations never change in dimensions 0, 2": lambda e: replace(
        e, observation=changed(e.observation, (slice(None), [0, 2]), 1.5)
    ),
    "2 of 42 episodes are exact copies of others": lambda e: concatenate([e, e.select([3, 7])]),
    "there is a single episode: nothing can be held out, and errors cannot be estimated": lambda e: e.select(
        [0]
    ),
    "1 of 41 episodes are very short: 1 step or fewer": lambda e: concatenate([e, one_step()]),
    "every reward is 1: only the length tells episodes apart": lambda e: replace(
        e, reward=np.ones_like(e.reward)
    ),
}


@pytest.mark.parametrize("warning", CASES)
def test_each_fault_raises_its_warning_and_no_other(warning, sound):
    assert inspect(CASES[warning](sound)).warnings == (warning,)


@pytest.mark.parametrize(
    ("name", "place", "beginning"),
    [
        (
            "observation",
            (5, 1),
            "observations have extreme values in dimension 1: 9999, where half of them lie in [",
        ),
        ("action", (5, 0), "actions have extreme values in dimension 0: 9999, where half of them lie in ["),
        ("reward", 5, "rewards have extreme values: 9999, where half of them lie in ["),
    ],
)
def test_an_error_code_among_the_numbers_is_an_extreme_value(name, place, beginning, sound):
    found = inspect(replace(sound, **{name: changed(getattr(sound, name), place, 9999)}))
    assert len(found.warnings) == 1
    assert found.warnings[0].startswith(beginning)


def test_rare_rewards_are_not_extreme(sound):
    reward = np.zeros_like(sound.reward)
    reward[::50] = 100
    assert inspect(replace(sound, reward=reward)).warnings == ()


def test_long_lists_of_dimensions_are_shortened(sound):
    found = inspect(replace(sound, observation=np.ones((479, 12), np.float32)))
    assert found.warnings == ("observations never change in dimensions 0, 1, 2, 3, 4, 5, 6, 7 and 4 more",)


def printed(inspection: Inspection) -> str:
    console = Console(width=110, record=True, file=io.StringIO())
    render(inspection, console)
    return console.export_text()


def test_rendering_shows_facts_and_every_sentence(sound):
    odd = replace(concatenate([sound, sound]), log_prob=None, notes=("no 'timeouts': [guessed]",))
    inspection = inspect(replace(odd, action=odd.action * 3))
    text = printed(inspection)
    assert "80 episodes, 878 steps" in text
    assert "3 numbers" in text
    assert "warning  40 of 80 episodes are exact copies of others" in text
    assert "assumed  no 'timeouts': [guessed]" in text
    assert "missing  log-probabilities of the actions" in text
    assert "note  actions leave [-1, 1] in dimensions 0, 1" in text


def test_rendering_shows_how_often_actions_were_taken(sound):
    text = printed(inspect(replace(sound, action=np.repeat([0, 1], [400, 39]), n_actions=2)))
    assert "2 choices (0: 91%, 1: 9%)" in text


def unfinished(episodes: Episodes, *, at_the_end: float) -> Episodes:
    """Cut-off episodes lack their final observation, and their last steps earn a share of the reward."""
    episodes = replace(episodes, terminated=np.zeros(40, bool), final_observed=np.zeros(40, bool))
    last = ~episodes.outcome_known
    reward = np.where(last, at_the_end / last.sum(), (1 - at_the_end) / (~last).sum())
    return replace(episodes, reward=reward.astype(np.float32))


def test_reward_that_goes_with_unknown_outcomes_is_told_and_warned_of_where_it_is_much(sound):
    few = inspect(unfinished(sound, at_the_end=0.05))
    assert few.warnings == ()
    assert "the last step of 40 of 40 episodes, with 5.0% of the reward" in few.information[-1]
    much = inspect(unfinished(sound, at_the_end=0.9))
    assert much.information == ()
    assert (
        "40 of 40 episodes, with 90.0% of the reward: importance sampling does not need it"
        in much.warnings[0]
    )


def test_episodes_of_one_step_are_not_short_where_they_are_the_rule():
    bandit = concatenate([replace(one_step(), reward=np.ones(1) * i) for i in range(5)])
    assert not any("short" in warning for warning in inspect(bandit).warnings)


def test_rendering_shows_which_columns_became_what(sound):
    columns = {
        "observation": tuple(f"s[{i}]" for i in range(12)),
        "log_prob": ("lp",),
        "unused": ("comment",),
    }
    inspection = inspect(replace(sound, columns=columns))
    assert inspection.columns == columns
    text = printed(inspection)
    assert "s[0], s[1]" in text
    assert "s[7] and 4 more" in text
    assert [line.split()[1:3] for line in text.splitlines() if "unused" in line] == [["unused", "comment"]]
    assert "columns" not in printed(inspect(sound))
