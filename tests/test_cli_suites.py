"""`vlbm suites` and `vlbm data`, as a person uses them."""

from __future__ import annotations

import re

import pytest

from systems import linear_logs
from test_cli import run
from vlbm.data.readers import save_npz
from vlbm.suites import gym


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VLBM_CACHE", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.fixture
def simulator(cache):
    pytest.importorskip("gymnasium", reason="the extra 'gym' is not installed")
    pytest.importorskip("mujoco", reason="the extra 'gym' is not installed")


def test_suites_lists_every_task_and_what_is_here(cache, capsys):
    assert run("suites") == 0
    shown = capsys.readouterr().out
    for name in (*gym.list_names(), "dope/door-human", "dope/ant-medium-replay"):
        assert name in shown
    assert re.search(r"^ *pendulum +40,000 .* yes", shown, re.MULTILINE)
    assert re.search(r"^ *hopper-medium +200,000 .* make", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "policy", "kinds"),
    [("hopper-medium", "policy_10", 4), ("pendulum", "policy_10", 4), ("dope/hopper-medium", "online_10", 2)],
)
def test_show_tells_the_true_return_of_every_policy(name, policy, kinds, cache, capsys):
    assert run("suites", "show", name) == 0
    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if policy in line)
    assert len(re.findall(r"-?[\d,]+\.\d\b", row)) >= kinds
    assert "logged steps" in shown


def test_data_are_made_with_a_checksum_that_repeats(simulator, tmp_path, capsys):
    sums = []
    for _ in range(2):
        assert run("data", "make", "pendulum-medium", "--steps", 300, "--quiet") == 0
        sums += re.findall(r"sha256 ([0-9a-f]{64})", capsys.readouterr().out)
        for kept in (tmp_path / "data").glob("*"):
            kept.unlink()
    assert len(sums) == 2
    assert sums[0] == sums[1]


def test_made_data_can_be_written_where_the_user_wants_them_and_inspected(simulator, tmp_path, capsys):
    target = tmp_path / "mine.npz"
    assert run("data", "make", "pendulum-random", "--steps", 250, "--output", target, "--quiet") == 0
    assert run("inspect", target) == 0
    assert "400" in capsys.readouterr().out


def test_suites_shows_that_made_data_are_here(simulator, capsys):
    assert run("data", "make", "pendulum-expert", "--steps", gym.STEPS // 1000, "--quiet") == 0
    assert gym.make_entry("pendulum-expert", steps=gym.STEPS // 1000).available


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["hoper-medium"], "unknown task 'hoper-medium'; did you mean hopper-medium"),
        (["pendulum"], "comes with the package"),
        (["hopper-medium", "--steps", "0"], "--steps 0: must be at least 1"),
        (["hopper-medium", "ant-medium", "--output", "x.npz"], "takes one data set, not 2"),
        (["dope/hopper-medium"], "add --like-d4rl"),
    ],
)
def test_what_cannot_be_made_is_said_in_one_line(arguments, words, simulator, capsys):
    assert run("data", "make", *arguments, "--quiet") == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1


def test_packed_data_can_be_given_wherever_data_are(tmp_path, capsys):
    save_npz(linear_logs(), tmp_path / "logs.npz")
    assert run("data", "pack", tmp_path / "logs.npz", tmp_path / "packed") == 0
    assert "packed: 6 episodes, 66 steps" in capsys.readouterr().out
    assert run("inspect", tmp_path / "packed") == 0
    assert "6 episodes, 66 steps" in capsys.readouterr().out
    assert run("data", "pack", tmp_path / "logs.npz", tmp_path / "packed") != 0
    assert "exists already" in capsys.readouterr().err
