"""The embedded task: Pendulum, 200 logged episodes and 11 target policies (scripts/make_pendulum.py)."""

from __future__ import annotations

import json
from importlib.resources import as_file, files

from vlbm.policies import load_policies
from vlbm.sources import load
from vlbm.suites.base import Task


def pendulum() -> Task:
    """Swing a pendulum up and hold it; returns are negative, nothing ever terminates."""
    with as_file(files("vlbm.suites") / "data" / "pendulum") as directory:
        facts = json.loads((directory / "truth.json").read_text(encoding="utf-8"))
        policies = load_policies(directory / "policy_*.safetensors")
        episodes = load(directory / "episodes.npz")
    truth = {name: facts["policies"][name]["mean_actions"]["discounted"]["value"] for name in policies}
    return Task("pendulum", episodes, policies, truth, facts["discount"], facts["horizon"])
