"""The embedded task: Pendulum, 200 logged episodes and 11 target policies (scripts/make_pendulum.py)."""

from __future__ import annotations

from importlib.resources import as_file, files

from vlbm.data.readers import load
from vlbm.suites.base import Entry, Task
from vlbm.suites.gym import load_target_policies, read_facts, read_truth


def load_pendulum() -> Task:
    """Swing a pendulum up and hold it; returns are negative, nothing ever terminates."""
    facts = read_facts("pendulum")
    with as_file(files("vlbm.suites") / "data" / "pendulum" / "episodes.npz") as path:
        episodes = load(path)
    return Task(
        "pendulum",
        episodes,
        load_target_policies("pendulum"),
        read_truth("pendulum"),
        facts["discount"],
        facts["horizon"],
    )


def make_entry() -> Entry:
    facts = read_facts("pendulum")
    return Entry(
        name="pendulum",
        suite="embedded",
        environment=facts["environment"],
        dataset="mixed",
        steps=sum(part["episodes"] for part in facts["behaviour"]) * facts["horizon"],
        observation_size=facts["observation_size"],
        action_size=facts["action_size"],
        policies=len(facts["policies"]),
        about="logged by four policies from poor to good; comes with the package",
        available=True,
    )
