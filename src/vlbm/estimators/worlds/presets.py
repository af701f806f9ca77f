"""Settings by name: presets, and the rows of the paper's ablation."""

from __future__ import annotations

from typing import Any

# The paper's model, objective, schedule and evaluation (docs/method.md says where the paper leaves a choice).
PAPER: dict[str, Any] = {
    "branches": 10,
    "latents": 16,
    "units": 64,
    "g_units": (128,),
    "activation": "relu",
    "normalisation": "batch",
    "spread": "variance",
    "standardise_actions": False,
    "drive": "own",
    "start": "prior",
    "emission": "state",
    "rsa_weight": 0.1,
    "elbo_weight": 0.1,
    "kl_weight": 1.0,
    "initial_kl_weight": 1.0,
    "termination": "mixture",
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
    "keep": None,
    "sampling": "all",
    "reencode_every": None,
    "clip_margin": None,
}
# A first answer in minutes, and the best one in about an hour; on two cores, for 200,000 logged steps.
QUICK: dict[str, Any] = {"steps": 1200, "validate_every": 200, "models": 2, "keep": None}
THOROUGH: dict[str, Any] = {"steps": 15_000, "validate_every": 1000, "models": 8, "keep": 6}

AR_PAPER: dict[str, Any] = {
    "members": 10,
    "member_weight": 0.0,
    "emission": "state",
    "sampling": "all",
    "clip_margin": None,
}

# By the class of settings; every method has a default.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "VLBM": {"default": {}, "quick": QUICK, "thorough": THOROUGH, "paper": PAPER},
    "FeedForward": {"default": {}, "quick": {"steps": 4000}, "thorough": {"steps": 60_000, "models": 2}},
    "AutoRegressive": {
        "default": {},
        "quick": {"steps": 4000},
        "thorough": {"steps": 60_000, "models": 2},
        "paper": AR_PAPER,
    },
}

# One branch is trained by its bound alone, so nothing else is there to weigh the bound against.
ONE_BRANCH: dict[str, Any] = {
    "branches": 1,
    "mixture_weight": 0.0,
    "elbo_weight": 1.0,
    "termination": "branches",
}

# The rows of the paper's ablation: settings of one model.
VARIANTS: dict[str, dict[str, Any]] = {
    "vlm": {**ONE_BRANCH, "method": "vlm", "rsa": "none"},
    "vlm-rsa": {**ONE_BRANCH, "method": "vlm-rsa"},
    "vlm-rsa-mse": {**ONE_BRANCH, "method": "vlm-rsa-mse", "rsa": "mse"},
    "vlm-rsa-ensemble": {
        "method": "vlm-rsa-ensemble",
        "ensemble": True,
        "mixture_weight": 0.0,
        "termination": "branches",
    },
    "vlbm": {},
}
