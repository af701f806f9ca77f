"""Draw the true returns of the gym suite's policies (docs/gym-returns.png); needs matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np

from vlbm.suites.gym import ENVIRONMENTS, read_facts

matplotlib.use("Agg")
TARGET = Path(__file__).resolve().parents[1] / "docs" / "gym-returns.png"


def main() -> None:
    from matplotlib import pyplot

    figure, places = pyplot.subplots(1, len(ENVIRONMENTS), figsize=(13, 3.2), layout="constrained")
    for place, environment in zip(places, ENVIRONMENTS, strict=True):
        policies = read_facts(environment)["policies"].values()
        for number, (actions, colour, marker) in enumerate(
            (("mean", "#0072B2", "o"), ("sampled", "#D55E00", "s"))
        ):
            true = [policy[f"{actions}_actions"]["discounted"] for policy in policies]
            place.errorbar(
                np.arange(len(true)) + 0.15 * number,
                [one["value"] for one in true],
                yerr=[2 * one["standard_error"] for one in true],
                fmt=marker,
                color=colour,
                markersize=4,
                label=f"{actions} actions",
            )
        place.set_title(environment)
        place.set_xlabel("policy")
        place.grid(alpha=0.25)
    places[0].set_ylabel("true return, discount 0.995")
    places[0].legend(frameon=False, fontsize=8)
    figure.savefig(TARGET, dpi=130)


if __name__ == "__main__":
    main()
