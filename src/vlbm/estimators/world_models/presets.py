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
THOROUGH: dict[str, Any] = {"steps": 15_000, "validate_every": 1000, "models": 6, "keep": 4}
VLBM: dict[str, dict[str, Any]] = {"default": {}, "quick": QUICK, "thorough": THOROUGH, "paper": PAPER}

# Where only bounds are trained, the encoder's latents drive the branches and say the whole state: no other
# term would teach transitions what a difference means. The paper's own presets stay as the paper has them.
BOUND: dict[str, Any] = {"drive": "encoder", "emission": "state"}
# One branch has nothing to weigh its bound against.
ONE_BRANCH: dict[str, Any] = {"branches": 1, "elbo_weight": 1.0, "termination": "branches"}


def of_ablation(method: str, **changes: Any) -> dict[str, dict[str, Any]]:
    """VLBM's presets for a row of the paper's ablation, which is VLBM with some settings changed."""
    ablated = {"method": method, "mixture_weight": 0.0, **changes}
    return {
        name: {**preset, **({} if name == "paper" else BOUND), **ablated} for name, preset in VLBM.items()
    }


AR_PAPER: dict[str, Any] = {
    "members": 10,
    "member_weight": 0.0,
    "emission": "state",
    "sampling": "all",
    "clip_margin": None,
}
ENSEMBLE: dict[str, dict[str, Any]] = {
    "default": {},
    "quick": {"steps": 4000},
    "thorough": {"steps": 60_000, "models": 2},
}

# By method and name; every method has a default.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "vlbm": VLBM,
    "vlm": of_ablation("vlm", **ONE_BRANCH, rsa="none"),
    "vlm-rsa": of_ablation("vlm-rsa", **ONE_BRANCH),
    "vlm-rsa-mse": of_ablation("vlm-rsa-mse", **ONE_BRANCH, rsa="mse"),
    # Whole models, each trained as the VLM with RSA is.
    "vlm-rsa-ensemble": of_ablation(
        "vlm-rsa-ensemble", ensemble=True, elbo_weight=1.0, termination="branches"
    ),
    "ff": ENSEMBLE,
    "ar": {**ENSEMBLE, "paper": AR_PAPER},
}
