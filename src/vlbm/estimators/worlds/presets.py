"""Settings by name: presets, and the rows of the paper's ablation."""

from __future__ import annotations

from typing import Any

# The paper's model, objective, schedule and evaluation (docs/method.md says where the paper leaves a choice).
PAPER: dict[str, Any] = {
    "branches": 10,
    "latents": 16,
    "units": 64,
    "normalisation": "batch",
    "standardise_actions": False,
    "alignment_weight": 0.1,
    "bound_weight": 0.1,
    "mixture": "branches",
    "divergence_weight": 1.0,
    "initial_divergence_weight": 1.0,
    "window": None,
    "batch": 64,
    "steps": 1000,
    "learning_rate": 1e-3,
    "warm_up": 0,
    "decay": "exponential",
    "decay_rate": 0.997,
    "clip": None,
    "weight_decay": 0.001,
    "validate_every": 50,
    "models": 1,
    "start": "prior",
    "sampling": "all",
    "reencode_every": None,
    "clip_margin": None,
}

PRESETS: dict[str, dict[str, Any]] = {"default": {}, "paper": PAPER}

# One branch is trained by its bound alone, so nothing else is there to weigh the bound against.
ONE_BRANCH: dict[str, Any] = {"branches": 1, "mixture": "none", "bound_weight": 1.0}

# The rows of the paper's ablation: settings of one model.
VARIANTS: dict[str, dict[str, Any]] = {
    "vlm": {**ONE_BRANCH, "method": "vlm", "alignment": "none"},
    "vlm-rsa": {**ONE_BRANCH, "method": "vlm-rsa"},
    "vlm-rsa-mse": {**ONE_BRANCH, "method": "vlm-rsa-mse", "alignment": "mse"},
    "vlm-rsa-ensemble": {"method": "vlm-rsa-ensemble", "shared_encoder": False},
    "vlbm": {},
}
