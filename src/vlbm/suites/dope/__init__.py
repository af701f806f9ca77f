"""DOPE: the paper's 32 tasks, from the published files of D4RL and DOPE."""

from vlbm.suites.dope.catalogue import Truth, names, problem
from vlbm.suites.dope.loading import entry, load_task, make_task, true_returns
from vlbm.suites.dope.regeneration import load_look_alike, load_regenerated, regenerate

__all__ = [
    "Truth",
    "entry",
    "load_look_alike",
    "load_regenerated",
    "load_task",
    "make_task",
    "names",
    "problem",
    "regenerate",
    "true_returns",
]
