"""Policies: files, functions and objects that can be evaluated."""

from vlbm.policies.base import HostPolicy, Policy, TracedPolicy, has_log_prob
from vlbm.policies.checks import check_actions, check_fit
from vlbm.policies.function import FunctionPolicy, as_policy
from vlbm.policies.loading import load_policies, load_policy
from vlbm.policies.mlp import Layer, MLPPolicy
from vlbm.policies.weights import save_policy

__all__ = [
    "FunctionPolicy",
    "HostPolicy",
    "Layer",
    "MLPPolicy",
    "Policy",
    "TracedPolicy",
    "as_policy",
    "check_actions",
    "check_fit",
    "has_log_prob",
    "load_policies",
    "load_policy",
    "save_policy",
]
