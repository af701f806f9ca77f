"""What is done with a mutant of a policy, a model or a run: as much as a user would do with it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from vlbm.policies import check_actions, check_fit, load_policy
from vlbm.storage import read_information

BATCH = 3
WIDEST = 4096  # observations; a wider policy has been read, and is not run


def act_on_vectors(path: Path) -> None:
    _act(path, discrete=False)


def act_on_choices(path: Path) -> None:
    _act(path, discrete=True)


def _act(path: Path, *, discrete: bool) -> None:
    policy = load_policy(path)
    size = policy.observation_size or 3
    if size > WIDEST:
        return
    seen = np.zeros((BATCH, size), np.float32)
    policy = check_fit({"p": policy}, observation_size=size, action_size=2, discrete=discrete)["p"]
    check_actions("p", policy.mean(seen), batch=BATCH, action_size=2, discrete=discrete)


def put_in_headers(folder: Path) -> Path:
    """JSON beside a safetensors file takes the place of what its header says, so that mutants reach it."""
    for beside in sorted(folder.rglob("*.safetensors.json")):
        file = beside.with_suffix("")
        text = beside.read_bytes().decode(errors="replace")
        beside.unlink()
        try:
            save_file(load_file(file), file, metadata={"vlbm": text})
        except (OSError, SafetensorError):
            continue  # this file is the mutant
    return folder


def take_from_headers(folder: Path) -> None:
    """What `put_in_headers` puts back."""
    for file in sorted(folder.rglob("*.safetensors")):
        beside = file.with_name(f"{file.name}.json")
        beside.write_text(json.dumps(read_information(file)))


def open_model(path: Path) -> None:
    from vlbm.estimators.registry import load_model

    model = load_model(put_in_headers(path))
    assert model.space.longest >= 1
    repr(model.settings)


def show_run(path: Path) -> None:
    from vlbm.cli.report import make_page
    from vlbm.report.page import render_page

    make_page(put_in_headers(path), render_page)
