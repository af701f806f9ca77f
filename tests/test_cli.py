"""The command line, as a person or a program uses it."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import h5py
import numpy as np
import pytest

from systems import linear_logs
from vlbm.cli import _expand_settings, main
from vlbm.data.readers import save_npz
from vlbm.estimators.world_models.vlbm import VLBM
from vlbm.version import VERSION

TINY = [
    "branches=2",
    "models=1",
    "keep=none",
    "latents=4",
    "units=8",
    "head_units=8",
    "g_units=8",
    "batch=8",
    "steps=4",
    "validate_every=2",
    "window=4",
]


def weights(observations: int = 3, actions: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = {
        "fc0/weight": (8, observations),
        "fc0/bias": (8,),
        "last_fc/weight": (actions, 8),
        "last_fc/bias": (actions,),
        "last_fc_log_std/weight": (actions, 8),
        "last_fc_log_std/bias": (actions,),
    }
    arrays = {name: random.normal(size=shape).astype(np.float32) * 0.3 for name, shape in shapes.items()}
    return {**arrays, "nonlinearity": np.array("relu"), "output_distribution": np.array("tanh_gaussian")}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with logged episodes and two policies, as the current folder."""
    monkeypatch.chdir(tmp_path)
    save_npz(linear_logs(), tmp_path / "logs.npz")
    np.savez(tmp_path / "first.npz", **weights(seed=1))
    np.savez(tmp_path / "second.npz", **weights(seed=2))
    return tmp_path


def run(*arguments: object) -> int:
    """The exit code of a command."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_evaluate_writes_the_json_other_programs_depend_on(folder, capsys):
    code = run("evaluate", "logs.npz", "second.npz", "first.npz", "--set", *TINY, "--discount", 0.9,
               "--horizon", 6, "--episodes", 5, "--seed", 3, "--json", "out.json", "--quiet")  # fmt: skip
    assert code == 0
    result = json.loads(Path("out.json").read_text())
    assert (result["method"], result["version"], result["seed"], result["discount"]) == (
        "vlbm",
        VERSION,
        3,
        0.9,
    )
    assert result["data"] == {"path": "logs.npz", "episodes": 6, "steps": 66}
    assert set(result["seconds"]) == {"fit", "evaluate", "backtest"}
    assert result["settings"]["branches"] == 2
    assert result["settings"]["horizon"] == 6
    assert [row["policy"] for row in result["policies"]] == ["second", "first"]
    for row in result["policies"]:
        assert row["lower"] <= row["value"] <= row["upper"]
        assert row["standard_error"] >= 0
        assert row["quantiles"]["0.05"] <= row["quantiles"]["0.5"] <= row["quantiles"]["0.95"]
    table = capsys.readouterr().out
    assert "second" in table
    assert "value" in table


def test_a_model_fitted_once_evaluates_as_one_fitted_on_the_spot(folder):
    assert run("fit", "logs.npz", "--save", "model", "--set", *TINY, "--seed", 5, "--quiet") == 0
    common = ["--episodes", 4, "--seed", 5, "--quiet"]
    assert run("evaluate", "first.npz", "--model", "model", "--json", "a.json", *common) == 0
    assert run("evaluate", "logs.npz", "first.npz", "--model", "model", "--json", "b.json", *common) == 0
    assert run("evaluate", "logs.npz", "first.npz", "--set", *TINY, "--json", "c.json", *common) == 0
    saved, with_data, fresh = (json.loads(Path(f"{name}.json").read_text()) for name in "abc")
    assert saved["policies"] == with_data["policies"] == fresh["policies"]
    assert saved["data"]["path"] == "logs.npz"


def test_a_rule_the_user_knows_ends_imagined_episodes(folder):
    Path("endings.py").write_text("def always(observation):\n    return observation[:, 0] > -1e9\n")
    assert run("evaluate", "logs.npz", "first.npz", "--set", *TINY, "--termination", "endings:always",
               "--episodes", 3, "--json", "out.json", "--quiet") == 0  # fmt: skip
    assert json.loads(Path("out.json").read_text())["policies"][0]["length"] == 1.0


def test_a_python_function_is_a_policy(folder):
    Path("mine.py").write_text("def still(observation):\n    return 0 * observation[:, :2]\n")
    assert run("evaluate", "logs.npz", "mine:still", "--set", *TINY, "--episodes", 3, "--horizon", 5,
               "--json", "out.json", "--quiet") == 0  # fmt: skip
    assert json.loads(Path("out.json").read_text())["policies"][0]["policy"] == "still"


def test_inspect_says_what_is_in_a_file(folder, capsys):
    assert run("inspect", "logs.npz") == 0
    assert "6 episodes, 66 steps" in capsys.readouterr().out


def test_settings_lists_what_can_be_set(capsys):
    assert run("settings") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["setting", "default", "quick", "thorough", "paper"] in rows
    values = {row[0]: row[1:] for row in rows if row}
    assert set(values) >= {field.name for field in fields(VLBM)}
    assert values["reencode_every"] == ["10", "10", "10", "none"]
    assert values["head_units"] == ["128,64"] * 4
    assert values["elbo_weight"][0] == "0.3333"


def test_settings_lists_those_of_one_method(capsys):
    assert run("settings", "wpdis") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["setting", "default"] in rows
    assert ["kind", "wpdis"] in rows
    assert run("settings", "nobody") == 2
    assert "unknown method 'nobody'" in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--discount", "0.9"), ("--horizon", "7"), ("--actions", "sample")])
def test_a_task_whose_truth_is_for_another_question_is_not_compared(option, capsys):
    assert run("compare", "pendulum", "--methods", "wpdis", *option) == 2
    assert f"{option[0]} {option[1]}: the true returns of pendulum are for" in capsys.readouterr().err


def test_one_set_takes_many_assignments_and_no_more():
    arguments = ["evaluate", "d", "--set", "a=1", "b=2", "p.npz", "--set", "c=3", "--seed", "1"]
    assert _expand_settings(arguments) == [
        "evaluate", "d", "--set", "a=1", "--set", "b=2", "p.npz", "--set", "c=3", "--seed", "1",
    ]  # fmt: skip


class Code:
    def __reduce__(self):
        return (Path("pwned").write_text, ("x",))


def bad_missing_field(folder: Path) -> tuple[list[str], list[str]]:
    with h5py.File("bad.hdf5", "w") as file:
        file["observations"] = np.zeros((4, 3), np.float32)
        file["actions"] = np.zeros((4, 2), np.float32)
        file["terminals"] = np.zeros(4, bool)
    return ["bad.hdf5", "first.npz"], ["bad.hdf5", "rewards"]


def bad_nan(folder: Path) -> tuple[list[str], list[str]]:
    episodes = linear_logs()
    episodes.reward[7] = np.nan
    save_npz_unchecked(episodes, "bad.npz")
    return ["bad.npz", "first.npz"], ["bad.npz", "reward"]


def bad_shape(folder: Path) -> tuple[list[str], list[str]]:
    episodes = linear_logs()
    np.savez("bad.npz", observations=episodes.observation[:-6], actions=episodes.action[:-3],
             rewards=episodes.reward, terminals=np.zeros(66, bool))  # fmt: skip
    return ["bad.npz", "first.npz"], ["bad.npz", "action"]


def bad_action_size(folder: Path) -> tuple[list[str], list[str]]:
    np.savez("wide.npz", **weights(actions=5))
    return ["logs.npz", "wide.npz"], ["wide", "5", "2"]


def bad_observation_size(folder: Path) -> tuple[list[str], list[str]]:
    np.savez("deep.npz", **weights(observations=11))
    return ["logs.npz", "deep.npz"], ["deep", "11", "3"]


def bad_empty(folder: Path) -> tuple[list[str], list[str]]:
    Path("bad.npz").touch()
    return ["bad.npz", "first.npz"], ["bad.npz", "empty"]


def bad_text(folder: Path) -> tuple[list[str], list[str]]:
    Path("bad.hdf5").write_text("<html>404 not found</html>\n")
    return ["bad.hdf5", "first.npz"], ["bad.hdf5", "text"]


def bad_pickle(folder: Path) -> tuple[list[str], list[str]]:
    Path("evil.pkl").write_bytes(pickle.dumps(Code()))
    return ["logs.npz", "evil.pkl"], ["evil.pkl"]


def bad_policy_output(folder: Path) -> tuple[list[str], list[str]]:
    Path("broken.py").write_text("def act(observation):\n    return observation[:, :2] / 0\n")
    return ["logs.npz", "broken:act"], ["act", "finite"]


def bad_one_step(folder: Path) -> tuple[list[str], list[str]]:
    save_npz(linear_logs(lengths=(1, 1, 1, 1)), "bad.npz")
    return ["bad.npz", "first.npz"], ["bad.npz", "single step"]


def bad_single(folder: Path) -> tuple[list[str], list[str]]:
    save_npz(linear_logs(lengths=(20,)), "bad.npz")
    return ["bad.npz", "first.npz"], ["bad.npz", "episodes"]


def bad_no_file(folder: Path) -> tuple[list[str], list[str]]:
    return ["nowhere.npz", "first.npz"], ["nowhere.npz"]


def bad_no_policy(folder: Path) -> tuple[list[str], list[str]]:
    return ["logs.npz"], ["policies"]


def bad_setting(folder: Path) -> tuple[list[str], list[str]]:
    return ["logs.npz", "first.npz", "--set", "branchs=3"], ["branchs", "branches"]


def bad_setting_value(folder: Path) -> tuple[list[str], list[str]]:
    return ["logs.npz", "first.npz", "--set", "branches=many"], ["branches", "whole number"]


def bad_method(folder: Path) -> tuple[list[str], list[str]]:
    return ["logs.npz", "first.npz", "--method", "oracle"], ["oracle", "vlbm"]


def bad_discount(folder: Path) -> tuple[list[str], list[str]]:
    return ["logs.npz", "first.npz", "--discount", "1.5"], ["discount", "1.5"]


def bad_model(folder: Path) -> tuple[list[str], list[str]]:
    Path("model").mkdir()
    Path("model/model.safetensors").write_bytes(b"torn")
    return ["first.npz", "--model", "model"], ["model.safetensors"]


def save_npz_unchecked(episodes, path: str) -> None:
    np.savez(path, observation=episodes.observation, action=episodes.action, reward=episodes.reward,
             length=episodes.length, terminated=episodes.terminated)  # fmt: skip


BAD = [case for name, case in sorted(globals().items()) if name.startswith("bad_")]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.__name__.removeprefix("bad_"))
def test_bad_input_is_one_clear_error_and_leaves_nothing_behind(case, folder, capsys):
    arguments, expected = case(folder)
    before = {path.name for path in folder.iterdir()}
    tiny = [] if "--model" in arguments else ["--set", *TINY]
    code = run("evaluate", *arguments, *tiny, "--json", "out.json", "--report", "out.html", "--quiet")
    printed = capsys.readouterr()
    assert code == 2
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err + printed.out
    for text in expected:
        assert text in printed.err
    after = {path.name for path in folder.iterdir()} - {"__pycache__"}
    assert after == before


def test_help_teaches_without_importing_jax(folder):
    began = time.monotonic()
    code = "import sys; from vlbm.cli import app; assert 'jax' not in sys.modules, 'jax was imported'"
    subprocess.run([sys.executable, "-c", code], check=True)
    helped = subprocess.run(
        [sys.executable, "-m", "vlbm", "evaluate", "--help"], capture_output=True, text=True, check=True
    )
    assert time.monotonic() - began < 30
    for word in ("DATA... POLICY...", "--discount", "--termination", "--report", "Example"):
        assert word in helped.stdout


def test_an_error_in_a_real_process_exits_with_two_and_no_traceback(folder):
    finished = subprocess.run(
        [sys.executable, "-m", "vlbm", "inspect", "nowhere.hdf5"], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 2
    assert finished.stderr.startswith("error: nowhere.hdf5")
    assert "Traceback" not in finished.stderr


CSV = "run,tilt,speed,push,gain,note\n"


@pytest.fixture
def tables(folder: Path) -> Path:
    """Two tables with unusual names."""
    random = np.random.default_rng(0)
    for number in range(2):
        rows = [
            f"{run},{random.normal():.3f},{random.normal():.3f},{random.normal():.3f},{step + number},0\n"
            for run in range(8)
            for step in range(30)
        ]
        (folder / f"table{number}.csv").write_text(CSV + "".join(rows))
    Path("calm.py").write_text("def still(observation):\n    return 0 * observation[:, :1]\n")
    return folder


ROLES = ("observation=tilt", "observation=speed", "action=push", "reward=gain", "episode=run")
NAMED = [f"--column={role}" for role in ROLES]


def test_a_role_that_is_named_again_has_more_columns_and_inspect_says_which(tables, capsys):
    assert run("inspect", "table0.csv", *NAMED) == 0
    said = capsys.readouterr().out
    assert "tilt, speed" in said
    for line in ("action", "reward", "episode", "unused"):
        assert line in said
    assert "2 numbers" in said


def test_a_role_of_one_column_that_is_named_twice_is_an_error(tables, capsys):
    assert run("inspect", "table0.csv", *NAMED, "--column", "reward=speed") != 0
    assert "reward is one column, but gain, speed were named for it" in capsys.readouterr().err


def test_several_files_and_patterns_are_data(tables, capsys):
    for given in (["table0.csv", "table1.csv"], ["table*.csv"]):
        assert run("inspect", *given, *NAMED) == 0
        assert "16 episodes, 480 steps" in capsys.readouterr().out
        assert run("evaluate", *given, "calm:still", *NAMED, "--method", "ff", "--set", "steps=2",
                   "validate_every=2", "units=4", "members=1", "--episodes", 3, "--quiet",
                   "--json", "out.json") == 0  # fmt: skip
        result = json.loads(Path("out.json").read_text())
        assert result["data"]["path"] == ", ".join(given)
        assert result["data"]["episodes"] == 16
    assert run("data", "pack", "table0.csv", "table1.csv", "packed", *NAMED) == 0
    assert "16 episodes" in capsys.readouterr().out


def test_data_alone_are_told_that_policies_are_missing(tables, capsys):
    assert run("evaluate", "table0.csv", "table1.csv", *NAMED) != 0
    assert "no policies were given" in capsys.readouterr().err
