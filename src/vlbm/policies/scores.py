"""Discrete policies that give a number for every action: its probability or its logit."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from vlbm.errors import InputError
from vlbm.policies.base import HostPolicy

SUM_TOLERANCE = 1e-3  # of probabilities, which half precision rounds


class ScoredPolicy(HostPolicy):
    """A policy that chooses action i with the i-th of the probabilities, or logits, that another one gives.

    Rows that are nowhere negative and sum to 1 are probabilities, all others are logits. What it gives is the
    whole policy: the mean is the most probable action, and a sample is drawn by the probabilities.
    """

    discrete = True

    def __init__(self, scores: HostPolicy, action_size: int, name: str):
        self._scores = scores
        self._name = name
        self.observation_size = scores.observation_size
        self.action_size = action_size

    def mean(self, observation: Float[np.ndarray, "batch obs"]) -> Int[np.ndarray, " batch"]:
        return self._log_probs(observation).argmax(axis=-1)

    def sample(
        self, observation: Float[np.ndarray, "batch obs"], *, key: PRNGKeyArray
    ) -> Int[np.ndarray, " batch"]:
        return np.asarray(jax.random.categorical(key, self._log_probs(observation)))

    def log_prob(
        self, observation: Float[np.ndarray, "batch obs"], action: Int[np.ndarray, " batch"]
    ) -> Float[np.ndarray, " batch"]:
        ids = np.asarray(action, int)[..., None]
        return np.take_along_axis(self._log_probs(observation), ids, axis=-1)[..., 0]

    def _log_probs(self, observation: Float[np.ndarray, "batch obs"]) -> Float[np.ndarray, "batch act"]:
        scores = np.asarray(self._scores.mean(observation), np.float64)
        if scores.shape != (len(observation), self.action_size):
            raise InputError(
                f"{self._name}: gave numbers of shape {scores.shape}, expected one for each of "
                f"{self.action_size} actions and {len(observation)} observations"
            )
        highest = scores.max(axis=-1, keepdims=True)
        # A logit of minus infinity is an action that is never taken.
        if not np.isfinite(highest).all():
            raise InputError(f"{self._name}: gave probabilities or logits that are not finite")
        sure = (scores >= 0).all(axis=-1) & (np.abs(scores.sum(axis=-1) - 1) <= SUM_TOLERANCE)
        weights = np.where(sure[:, None], scores, np.exp(scores - highest))
        with np.errstate(divide="ignore"):
            return np.log(weights / weights.sum(axis=-1, keepdims=True))


def read_scores(policy: HostPolicy, *, observation_size: int, action_size: int, name: str) -> HostPolicy:
    """The policy itself, or by its probabilities or logits if it gives one float for every action."""
    if action_size < 2:
        return policy
    output = np.asarray(policy.mean(np.zeros((2, observation_size), np.float32)))
    if output.dtype.kind == "f" and output.shape == (2, action_size):
        return ScoredPolicy(policy, action_size, name)
    return policy
