"""ICU-Sepsis: treatment of sepsis as a tabular system that was fitted to hospital records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vlbm.errors import require
from vlbm.suites.exact.tabular import TabularPolicy, TabularSystem


def sepsis(*, horizon: int = 60, discount: float = 0.99) -> TabularSystem:
    """716 states, 25 treatments, the clinicians' policy as behaviour; surviving pays 1.

    An action that clinicians hardly ever took has the average effect of those they did take, as in the
    first version of the package.
    """
    package = require("icu_sepsis", extra="sepsis", purpose="the system 'sepsis'")
    simulator = package.ICUSepsisEnv()
    tables = simulator.dynamics
    transition = tables["tx_mat"]
    constants = require("icu_sepsis.utils.constants", extra="sepsis", purpose="the system 'sepsis'")
    terminal = np.isin(np.arange(len(transition)), sorted(constants.STATES_TERMINAL))
    # The reward depends on the next state alone.
    reward = tables["r_mat"][:1, :1]
    clinicians = np.where(terminal[:, None], 1 / transition.shape[1], simulator.expert_policy)
    system = TabularSystem(
        name="sepsis",
        transition=transition,
        reward=reward,
        initial=tables["d_0"],
        terminal=terminal,
        behaviour=TabularPolicy(clinicians),
        targets={},
        discount=discount,
        horizon=horizon,
    )
    gain = system.action_values(system.behaviour, discount=discount, horizon=None)[0]
    best = np.eye(system.actions)[np.where(clinicians > 0, gain, -np.inf).argmax(axis=-1)]
    targets = {f"power {power:g}": power_policy(clinicians, power) for power in (0.8, 1.5)}
    # Mixtures of the clinicians' policy and its greedy improvement among the treatments they use.
    targets |= {
        f"better {share:g}": TabularPolicy((1 - share) * clinicians + share * best) for share in (0.1, 0.2)
    }
    return replace(system, targets=targets)


def power_policy(probability: np.ndarray, power: float) -> TabularPolicy:
    """A policy's probabilities raised to a power: above 1 it favours what it did already, below 1 less."""
    raised = probability**power
    return TabularPolicy(raised / raised.sum(axis=-1, keepdims=True))
