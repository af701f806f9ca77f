"""DOPE: the paper's 32 tasks, from the published files of D4RL and DOPE."""

from vlbm.suites.dope.catalogue import Truth, find_problem, list_names
from vlbm.suites.dope.loading import load_task, make_entry, make_task, true_returns
from vlbm.suites.dope.regeneration import load_regenerated, load_regenerated_task, regenerate

__all__ = [
    "Truth",
    "find_problem",
    "list_names",
    "load_regenerated",
    "load_regenerated_task",
    "load_task",
    "make_entry",
    "make_task",
    "regenerate",
    "true_returns",
]
