"""Off-policy evaluation: how good each policy is, how sure that is, and when not to trust it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vlbm.version import VERSION

if TYPE_CHECKING:
    from vlbm.cores import use_cores as use_cores
    from vlbm.data.episodes import Episodes as Episodes
    from vlbm.data.inspect import inspect as inspect
    from vlbm.data.readers import load as load
    from vlbm.environment import LearnedEnvironment as LearnedEnvironment
    from vlbm.environment import LearnedVectorEnvironment as LearnedVectorEnvironment
    from vlbm.errors import InputError as InputError
    from vlbm.estimand import Estimand as Estimand
    from vlbm.estimators.behaviour_cloning import BehaviourCloning as BehaviourCloning
    from vlbm.estimators.dice import DICE as DICE
    from vlbm.estimators.dice import DualDICE as DualDICE
    from vlbm.estimators.dice import GenDICE as GenDICE
    from vlbm.estimators.doubly_robust import DoublyRobust as DoublyRobust
    from vlbm.estimators.doubly_robust import WeightedDoublyRobust as WeightedDoublyRobust
    from vlbm.estimators.fqe import FQE as FQE
    from vlbm.estimators.importance import IS as IS
    from vlbm.estimators.importance import PDIS as PDIS
    from vlbm.estimators.importance import WIS as WIS
    from vlbm.estimators.importance import WPDIS as WPDIS
    from vlbm.estimators.registry import load_model as load_model
    from vlbm.estimators.registry import make_estimator as make_estimator
    from vlbm.estimators.registry import parse_settings as parse_settings
    from vlbm.estimators.vpm import VPM as VPM
    from vlbm.estimators.world_models.autoregressive import AutoRegressive as AutoRegressive
    from vlbm.estimators.world_models.feedforward import FeedForward as FeedForward
    from vlbm.estimators.world_models.vlbm import VLBM as VLBM
    from vlbm.experiments.compare import compare as compare
    from vlbm.experiments.comparison import Comparison as Comparison
    from vlbm.policies import Policy as Policy
    from vlbm.policies import load_policies as load_policies
    from vlbm.policies import load_policy as load_policy
    from vlbm.policies import save_policy as save_policy
    from vlbm.results.estimate import Estimate as Estimate
    from vlbm.results.estimates import Estimates as Estimates
    from vlbm.suites import load_task as load_task

# Where each public name lives. Looked up on first use, so that `vlbm --help` does not wait for JAX.
_HOME = {
    "AutoRegressive": "vlbm.estimators.world_models.autoregressive",
    "BehaviourCloning": "vlbm.estimators.behaviour_cloning",
    "DICE": "vlbm.estimators.dice",
    "DoublyRobust": "vlbm.estimators.doubly_robust",
    "DualDICE": "vlbm.estimators.dice",
    "FeedForward": "vlbm.estimators.world_models.feedforward",
    "FQE": "vlbm.estimators.fqe",
    "GenDICE": "vlbm.estimators.dice",
    "IS": "vlbm.estimators.importance",
    "PDIS": "vlbm.estimators.importance",
    "VPM": "vlbm.estimators.vpm",
    "WeightedDoublyRobust": "vlbm.estimators.doubly_robust",
    "WIS": "vlbm.estimators.importance",
    "WPDIS": "vlbm.estimators.importance",
    "VLBM": "vlbm.estimators.world_models.vlbm",
    "Comparison": "vlbm.experiments.comparison",
    "Episodes": "vlbm.data.episodes",
    "LearnedEnvironment": "vlbm.environment",
    "LearnedVectorEnvironment": "vlbm.environment",
    "Estimand": "vlbm.estimand",
    "Estimate": "vlbm.results.estimate",
    "Estimates": "vlbm.results.estimates",
    "InputError": "vlbm.errors",
    "Policy": "vlbm.policies",
    "compare": "vlbm.experiments.compare",
    "inspect": "vlbm.data.inspect",
    "load": "vlbm.data.readers",
    "load_model": "vlbm.estimators.registry",
    "load_policies": "vlbm.policies",
    "load_policy": "vlbm.policies",
    "load_task": "vlbm.suites",
    "make_estimator": "vlbm.estimators.registry",
    "parse_settings": "vlbm.estimators.registry",
    "save_policy": "vlbm.policies",
    "use_cores": "vlbm.cores",
}

__version__ = VERSION
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'vlbm' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
