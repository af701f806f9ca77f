"""Small logs and models that tests share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from vlbm.episodes import Episodes
from vlbm.estimators.vlbm import VLBM
from vlbm.models.branching import BranchingModel
from vlbm.scaling import Scaler
from vlbm.windows import action_vectors


def noise_logs(
    lengths: Sequence[int],
    *,
    terminated: Sequence[bool] | None = None,
    observations: int = 2,
    actions: int = 1,
    choices: int | None = None,
    seed: int = 0,
) -> Episodes:
    """Episodes of pure noise, no two numbers alike; columns differ in mean and scale."""
    generator = np.random.default_rng(seed)
    steps = sum(lengths)
    columns = np.arange(observations)
    action = (
        generator.integers(choices, size=steps)
        if choices is not None
        else generator.normal(size=(steps, actions)).astype(np.float32)
    )
    observation = generator.normal(size=(steps + len(lengths), observations)) * (columns + 0.5) + columns
    return Episodes(
        observation=observation.astype(np.float32),
        action=action,
        reward=(generator.normal(size=steps) * 3 - 1).astype(np.float32),
        length=np.array(lengths),
        terminated=np.zeros(len(lengths), bool) if terminated is None else np.array(terminated),
        choices=choices,
    )


def random_world(episodes: Episodes, *, seed: int = 0, **settings: Any) -> BranchingModel:
    """A tiny model scaled to the episodes, all of its weights, biases and running averages random.

    NumPy draws them: letting JAX do it would compile for seconds, once for every architecture.
    """
    estimator = VLBM(**{"branches": 3, "latents": 3, "units": 5, "head_units": (6, 4), **settings})
    generator = np.random.default_rng(seed)
    empty = eqx.filter_eval_shape(lambda key: estimator.make_world(episodes, key=key), jax.random.key(0))

    def fill(path: tuple[Any, ...], leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        drawn = 0.5 * generator.normal(size=leaf.shape)
        if path[-1].name in ("variance", "weight_root"):
            drawn = 0.5 + np.abs(drawn)
        return jnp.asarray(drawn, jnp.float32)

    scales = estimator.standardise_actions and not episodes.discrete
    return replace(
        jax.tree_util.tree_map_with_path(fill, empty),
        observation=Scaler.fit(episodes.observation),
        reward=Scaler.fit(episodes.reward[:, None]),
        action=Scaler.fit(action_vectors(episodes)) if scales else Scaler.identity(episodes.action_size),
    )


def bits(tree: Any) -> list[bytes]:
    """What two trees of arrays must share to be the same to the last bit."""
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array_like))]
