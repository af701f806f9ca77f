"""Learning-rate schedule and optimiser."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import jax
import optax


@dataclass(frozen=True)
class Schedule:
    """Number of steps, learning rate and regularisation."""

    steps: int = 1000
    learning_rate: float = 1e-3
    warm_up: int = 0
    decay: Literal["cosine", "exponential"] = "cosine"
    decay_rate: float = 0.05  # cosine: final fraction of the rate; exponential: factor per step
    clip: float | None = 20.0  # of the global gradient norm
    weight_decay: float = 0.0  # L2 on the weights of hidden layers, added to the gradient
    validate_every: int = 250

    @classmethod
    def of(cls, settings: Any) -> Schedule:
        """From settings that have fields of the same names."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})

    def optimiser(self) -> optax.GradientTransformation:
        """Gradient clipping, L2 and Adam."""
        if self.decay == "cosine":
            rate = optax.warmup_cosine_decay_schedule(
                init_value=self.learning_rate / max(self.warm_up, 1),
                peak_value=self.learning_rate,
                warmup_steps=self.warm_up,
                decay_steps=max(self.steps, self.warm_up + 1),
                end_value=self.learning_rate * self.decay_rate,
            )
        else:
            rate = optax.exponential_decay(self.learning_rate, 1, self.decay_rate)
        clip = [] if self.clip is None else [optax.clip_by_global_norm(self.clip)]
        # Before Adam: L2 regularisation as in the paper, not decoupled weight decay (AdamW).
        l2 = [optax.add_decayed_weights(self.weight_decay, mask=hidden_weights)] if self.weight_decay else []
        return optax.chain(*clip, *l2, optax.adam(rate))


def hidden_weights(tree: Any) -> Any:
    """Which leaves are weights of hidden layers, by name: heads and recurrent matrices do not decay."""

    def decays(path: tuple[Any, ...], leaf: Any) -> bool:
        return [getattr(part, "name", None) for part in path[-2:]] == ["hidden", "weight"]

    return jax.tree_util.tree_map_with_path(decays, tree)
