"""Systems whose policies' values are known exactly, to test estimators on."""

from collections.abc import Callable

from vlbm.suites.exact.base import ActionFunction, ExactSystem, StateFunction, true_values
from vlbm.suites.exact.chain import chain
from vlbm.suites.exact.cliff import cliff
from vlbm.suites.exact.graph import graph
from vlbm.suites.exact.linear import LinearGaussianPolicy, LinearSystem, linear
from vlbm.suites.exact.sepsis import sepsis
from vlbm.suites.exact.tabular import TabularPolicy, TabularSystem

SYSTEMS: dict[str, Callable[[], ExactSystem]] = {
    "chain": chain,
    "graph": graph,
    "cliff": cliff,
    "sepsis": sepsis,
    "linear": linear,
}

__all__ = [
    "SYSTEMS",
    "ActionFunction",
    "ExactSystem",
    "LinearGaussianPolicy",
    "LinearSystem",
    "StateFunction",
    "TabularPolicy",
    "TabularSystem",
    "chain",
    "cliff",
    "graph",
    "linear",
    "sepsis",
    "true_values",
]
