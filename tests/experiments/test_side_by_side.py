"""A user's own log and policies through all kinds of methods at once, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from test_cli import run

gymnasium = pytest.importorskip("gymnasium")
sb3 = pytest.importorskip("stable_baselines3")

METHODS = "ff,fqe,wpdis,dr"
HASTY = (
    "ff.units=8",
    "ff.steps=5",
    "ff.members=2",
    "fqe.units=8",
    "fqe.steps=5",
    "dr.critic.units=8",
    "dr.critic.steps=5",
)
POLICY = """
def upright(seen):
    return (seen[:, 2] + 0.5 * seen[:, 3] > 0).astype(int)
"""


def write_log(path: Path) -> None:
    """Forty episodes of CartPole under a coin that prefers what keeps the pole up."""
    random, environment = np.random.default_rng(0), gymnasium.make("CartPole-v1", max_episode_steps=40)
    lines = [
        "episode,observation_0,observation_1,observation_2,observation_3,action,reward,terminated,log_prob"
    ]
    for episode in range(40):
        seen, _ = environment.reset(seed=episode)
        ended = cut_off = False
        while not (ended or cut_off):
            chance = 0.8 if seen[2] + 0.5 * seen[3] > 0 else 0.2
            action = int(random.uniform() < chance)
            log_prob = np.log(chance if action else 1 - chance)
            before = ",".join(f"{number:.6f}" for number in seen)
            seen, reward, ended, cut_off, _ = environment.step(action)
            lines.append(f"{episode},{before},{action},{reward},{int(ended)},{log_prob:.6f}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    write_log(tmp_path / "log.csv")
    (tmp_path / "mine.py").write_text(POLICY)
    model = sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, policy_kwargs={"net_arch": [8]}, device="cpu")
    model.learn(64)
    model.save(tmp_path / "ppo.zip")
    return tmp_path


def test_all_methods_answer_one_question_for_sb3_and_function_policies(folder, capsys):
    asked = ("--actions", "sample", "--discount", 0.99, "--horizon", 30)
    code = run("compare", "log.csv", "ppo.zip", "mine:upright", "--methods", METHODS, "--set", *HASTY,
               *asked, "--json", "out.json", "--quiet")  # fmt: skip
    assert code == 0
    shown = capsys.readouterr()
    # Said before anything is trained, on the other stream.
    for method in ("wpdis", "dr"):
        assert f"note: {method}: left out: upright (without log-probabilities" in " ".join(shown.err.split())
    lines = shown.out.splitlines()
    question = "Estimated: return of the first 30 steps, discount 0.99, policies sample their actions"
    header = next(place for place, line in enumerate(lines) if line.split()[:1] == ["policy"])
    assert lines.index(question) < header
    assert lines[header].split()[1:] == METHODS.split(",")
    result = json.loads(Path("out.json").read_text())
    assert result["failures"] == {}
    highest = (1 - 0.99**30) / 0.01
    for method in METHODS.split(","):
        (found,) = result["methods"][method]["estimates"]
        assert found["estimand"] == result["estimand"]
        named = [row["policy"] for row in found["policies"]] + list(found["excluded"])
        assert sorted(named) == ["ppo", "upright"]
        assert found["feasible"] == pytest.approx([1.0, highest])
        for row in found["policies"]:
            assert 1.0 <= row["lower"] <= row["value"] <= row["upper"] <= highest + 1e-6
        assert found["behaviour"]["episodes"] == 40
        assert 0 <= result["backtest"][method]["error"] <= highest
    assert result["behaviour"] == found["behaviour"]


def test_who_answers_for_sampled_actions_is_marked_where_means_are_asked_for(folder, capsys):
    # Discrete actions have weights for the likeliest one too: all methods answer the same here.
    code = run("compare", "log.csv", "ppo.zip", "mine:upright", "--methods", "wpdis", "--json", "out.json",
               "--no-backtest", "--quiet")  # fmt: skip
    assert code == 0
    assert "left out" not in capsys.readouterr().err
    result = json.loads(Path("out.json").read_text())
    assert result["backtest"] == {}
    assert len(result["methods"]["wpdis"]["estimates"][0]["policies"]) == 2
