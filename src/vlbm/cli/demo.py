"""vlbm demo."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from vlbm.cli.common import (
    Overwrite,
    Quiet,
    Resume,
    Seed,
    Settings,
    claim_save,
    command_line,
    make_console,
    make_progress,
)

# A pendulum is learnt sooner than a robot.
DEMO = ("steps=600",)


def demo(
    context: typer.Context,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Where results go.")] = Path("demo"),
    settings: Settings = [],  # noqa: B006
    seed: Seed = 0,
    resume: Resume = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Rank the 11 policies of the embedded Pendulum task and compare with the truth (a few minutes)."""
    import numpy as np

    from vlbm.estimators.registry import make_estimator
    from vlbm.experiments.comparison import single_comparison
    from vlbm.experiments.evidence.collect import DiagnosticsCollector
    from vlbm.report.saved import save_run
    from vlbm.report.tables import print_estimates
    from vlbm.results.metrics import absolute_error, rank_correlation, regret
    from vlbm.suites.pendulum import load_pendulum

    claim_save(context, output, resume=resume, overwrite=overwrite)
    console, progress = make_console(), make_progress(quiet)
    task = load_pendulum()
    console.print(
        f"Pendulum: {task.episodes.count} logged episodes, {task.episodes.steps:,} steps, "
        f"{len(task.policies)} candidate policies. None of them will be run.",
        highlight=False,
    )
    evaluator = make_estimator("vlbm", "quick", [*DEMO, *settings]).fit(
        task.episodes, seed=seed, directory=output / "model", resume=resume, progress=progress
    )
    evaluator = replace(evaluator, data={**evaluator.data, "path": "embedded: pendulum"})
    evaluator.save(output / "model")
    collector = DiagnosticsCollector.of(task.episodes, discount=task.discount, horizon=task.horizon)
    estimates, evidence = collector.evaluate_with_diagnostics(
        evaluator,
        task.policies,
        actions=task.actions,
        backtest=True,
        progress=progress.with_title("imagining"),
    )
    estimates.save_json(output / "estimates.json")
    run = single_comparison(
        estimates,
        truth=task.truth,
        task="pendulum",
        evidence=evidence,
        logged=collector.summary,
        command=command_line(),
    )
    save_run(run, output)
    run.report(output / "report.html")
    print_estimates(estimates, console, truth=task.truth)
    estimated, true = estimates.values, np.array([task.truth[name] for name in task.policies])
    console.print(
        f"\nAgainst the true returns, which the model never saw: rank correlation "
        f"[bold]{rank_correlation(estimated, true):.3f}[/], regret@1 {regret(estimated, true):.3f} "
        f"of the range, mean absolute error {absolute_error(estimated, true):.1f}",
        highlight=False,
    )
    console.print(f"The page: {output / 'report.html'}", highlight=False)
