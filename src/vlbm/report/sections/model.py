"""The fitted model: training curves, calibration, open-loop error and latent space."""

from __future__ import annotations

import numpy as np

from vlbm.experiments.evidence.collect import ModelEvidence
from vlbm.experiments.evidence.latents import LOGGED, LatentMap
from vlbm.report.charts.lines import Line, line_chart
from vlbm.report.charts.scatter import draw_cloud
from vlbm.report.charts.shares import shares_chart
from vlbm.report.findings import Findings
from vlbm.report.numbers import Formatter, format_percent, format_short
from vlbm.report.parts import Block, Chart, Gallery, Prose, Section, Table
from vlbm.results.diagnostics.calibration import Calibration

NAMED = 7  # policies with their own colour on the latent map
BINS = 5  # shades of return on the latent map


def model_section(findings: Findings) -> Section | None:
    """None for methods without a world model."""
    evidence = findings.evidence
    if evidence is None or evidence.model is None:
        return None
    model = evidence.model
    blocks: list[Block] = []
    charts = list(_training_charts(model))
    if charts:
        steps = ", ".join(f"{step:,}" for step in model.best_steps)
        blocks.append(
            Prose((f"Kept is what validated best on held-out episodes: step {steps} of training.",))
        )
    if any(len(weight) > 1 for weight in model.branch_weights):
        wholes = [
            (f"model {index + 1}", weight.tolist()) for index, weight in enumerate(model.branch_weights)
        ]
        caption = "How much each decoder branch counts in the mixture."
        charts.append(shares_chart("Branch weights", wholes, part="branch", caption=caption))
    if charts:
        blocks.append(Gallery(tuple(charts)))
    if model.calibration is not None:
        blocks.append(Gallery(_calibration_charts(model.calibration)))
    if model.latents is not None:
        policies = list(evidence.policies)
        ranked = [policies.index(row.policy) for row in findings.ranked if row.policy in evidence.policies]
        blocks.append(Gallery(_latent_charts(model.latents, policies, ranked, findings.write)))
    return Section("model", f"The model ({findings.rollout_method})", tuple(blocks))


def _training_charts(model: ModelEvidence) -> tuple[Chart, ...]:
    """Validation first, then every term; a line for every model. A single point is no curve."""
    histories = [history for history in model.histories if len(history) > 1]
    if not histories:
        return ()
    # Terms that are always zero are switched off by the settings.
    terms = [
        name
        for name in histories[0][0]
        if name not in ("step", "validation")
        and any(entry.get(name) for history in histories for entry in history)
    ]
    terms.sort(key=lambda name: name != "loss")
    charts = []
    for name in ("validation", *terms):
        lines = [
            Line(
                f"model {index + 1}",
                f"c{index % 8}",
                [entry["step"] for entry in history],
                [entry.get(name, float("nan")) for entry in history],
                dots=len(history) < 15,
            )
            for index, history in enumerate(histories)
        ]
        caption = "Open-loop error on held-out episodes; lower is better." if name == "validation" else ""
        label = name.replace("_", " ")
        charts.append(
            line_chart(label.capitalize(), lines, x_label="training step", y_label=label, caption=caption)
        )
    return tuple(charts)


def _calibration_charts(found: Calibration) -> tuple[Chart, ...]:
    def coverage(title: str, shares: np.ndarray, what: str) -> Chart:
        lines = [
            Line(
                "1 step ahead" if ahead == 1 else f"{ahead} steps ahead",
                f"c{index}",
                found.levels,
                shares[index],
                dots=True,
            )
            for index, ahead in enumerate(found.ahead)
        ]
        return line_chart(
            title,
            lines,
            x_label="nominal coverage",
            y_label="observed coverage",
            x_range=(0.0, 1.0),
            y_range=(0.0, 1.0),
            y_text=format_percent,
            diagonal=True,
            caption=f"How often held-out logged {what} fall inside predicted intervals. Below the line the "
            "model is too sure of itself, above it not sure enough.",
        )

    steps = np.arange(1, len(found.error) + 1)
    error = line_chart(
        "Open-loop error",
        [
            Line("predicting no change", "logged", steps, found.standstill),
            Line("the model", "c0", steps, found.error),
        ],
        x_label="steps ahead",
        y_label="error, in standard deviations",
        y_range=(0.0, float(max(found.error.max(), found.standstill.max(), 1e-9)) * 1.06),
        caption=f"Mean predictions of {found.windows} held-out windows under logged actions.",
    )
    return (
        coverage("Calibration of observations", found.coverage, "observations"),
        coverage("Calibration of rewards", found.reward_coverage, "rewards"),
        error,
    )


def _latent_charts(
    found: LatentMap, policies: list[str], ranked: list[int], write: Formatter
) -> tuple[Chart, ...]:
    bounds = np.stack([found.points.min(axis=0), found.points.max(axis=0)])
    named = ranked[:NAMED]
    others = [index for index in range(len(policies)) if index not in named]

    def of(*owners: int) -> np.ndarray:
        return np.isin(found.owner, owners)

    groups = [("logged", "logged", of(LOGGED)), ("rest", "other policies", of(*others))]
    groups += [(f"c{place}", policies[index], of(index)) for place, index in enumerate(named)]
    groups = [group for group in groups if group[2].any()]
    caption = (
        f"Encoded steps, laid out by {found.technique}: near points have near latents; axes mean nothing."
    )
    by_policy = Chart(
        "Latent map by policy",
        draw_cloud(
            "Latent map by policy", [(style, found.points[mask]) for style, _, mask in groups], bounds
        ),
        _centre_table(found, [(label, mask) for _, label, mask in groups], write),
        caption,
        tuple((style, label) for style, label, _ in groups),
        "policy",
    )
    edges = np.quantile(found.returns, np.linspace(0, 1, BINS + 1))
    place = np.clip(np.searchsorted(edges, found.returns, side="right") - 1, 0, BINS - 1)
    shades = [
        (f"v{index}", f"{write(edges[index])} to {write(edges[index + 1])}", place == index)
        for index in range(BINS)
        if (place == index).any()
    ]
    by_return = Chart(
        "Latent map by return",
        draw_cloud(
            "Latent map by return", [(style, found.points[mask]) for style, _, mask in shades], bounds
        ),
        _centre_table(found, [(label, mask) for _, label, mask in shades], write),
        f"{caption} Coloured by the discounted return of the episode that a step is from.",
        tuple((style, label) for style, label, _ in shades),
        "return",
    )
    return by_policy, by_return


def _centre_table(found: LatentMap, groups: list[tuple[str, np.ndarray]], write: Formatter) -> Table:
    rows = []
    for label, mask in groups:
        x, y = found.points[mask].mean(axis=0)
        cells = (
            format_short(round(float(x), 1)),
            format_short(round(float(y), 1)),
            write(float(found.returns[mask].mean())),
        )
        rows.append((label, f"{int(mask.sum()):,}", *cells))
    return Table(("steps of", "points", "centre, across", "centre, up", "mean return"), tuple(rows))
