"""vlbm fit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlbm.cli.common import (
    Column,
    Data,
    Method,
    NActions,
    Overwrite,
    Preset,
    Quiet,
    Resume,
    Seed,
    Settings,
    claim_save,
    fit_estimator,
    learns_a_world,
    load_episodes,
    make_console,
    make_progress,
    name_data,
    save_evaluator,
)
from vlbm.errors import InputError


def fit(
    context: typer.Context,
    data: Data,
    save: Annotated[Path, typer.Option(metavar="DIR", help="Where the model and its checkpoints go.")],
    method: Method = "vlbm",
    preset: Preset = "default",
    settings: Settings = [],  # noqa: B006
    seed: Seed = 0,
    resume: Resume = False,
    overwrite: Overwrite = False,
    column: Column = [],  # noqa: B006
    n_actions: NActions = None,
    quiet: Quiet = False,
) -> None:
    """Fit a model to DATA and keep it, to evaluate policies later with `vlbm evaluate --model DIR`."""
    if not learns_a_world(method):
        raise InputError(
            f"--method {method}: learns nothing before it knows the policies; use vlbm evaluate instead"
        )
    from vlbm.estimators.registry import make_estimator

    claim_save(context, save, resume=resume, overwrite=overwrite)
    logged = load_episodes(data, column, n_actions)
    estimator = make_estimator(method, preset, settings)
    evaluator = fit_estimator(name_data(data), logged, estimator, seed, save, resume, make_progress(quiet))
    save_evaluator(evaluator, save)
    console = make_console()
    for index, history in enumerate(evaluator.histories):
        score = "none yet" if history.best_score is None else f"{history.best_score:.4g}"
        console.print(
            f"model {index}: validation {score} at step {history.best_step}, {history.seconds:.0f} s",
            highlight=False,
        )
    for note in evaluator.notes:
        console.print(f"warning: {note}", style="yellow", highlight=False, markup=False)
    console.print(f"saved to {save}", highlight=False)
