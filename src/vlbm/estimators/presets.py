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

# The rows of the paper's ablation: settings of one model.
VARIANTS: dict[str, dict[str, Any]] = {
    "vlm": {"method": "vlm", "branches": 1, "alignment": "none", "mixture": "none"},
    "vlm-rsa": {"method": "vlm-rsa", "branches": 1, "mixture": "none"},
    "vlm-rsa-mse": {"method": "vlm-rsa-mse", "branches": 1, "alignment": "mse", "mixture": "none"},
    "vlm-rsa-ensemble": {"method": "vlm-rsa-ensemble", "shared_encoder": False},
    "vlbm": {},
}
