"""vlbm fit."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from vlbm.cli.tracking import Track
from vlbm.errors import InputError, TrainingDivergedError

if TYPE_CHECKING:
    from vlbm.data.episodes import Episodes
    from vlbm.progress import Progress


class Search(StrEnum):
    grid = "grid"
    halving = "halving"


class Score(StrEnum):
    open_loop = "open-loop"
    elbo = "elbo"
    behaviours = "behaviours"


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
    search: Annotated[
        Search | None,
        typer.Option(
            help="Choose settings by held-out logged episodes first: fit a whole grid to the end, or begin "
            "with short training and go on with the better third."
        ),
    ] = None,
    grid: Annotated[
        list[str],
        typer.Option(
            metavar="paper|KEY=V1,V2 ...",
            help="What to choose from: every combination of values, such as learning_rate=1e-3,3e-4; or the "
            "paper's grid, which is the default for vlbm.",
        ),
    ] = [],  # noqa: B006
    score: Annotated[
        Score,
        typer.Option(
            help="What settings are judged by: the error of ten-step predictions, the bound on the "
            "likelihood (vlbm), or the value of logged behaviours that were left out."
        ),
    ] = Score.open_loop,
    track: Track = None,
    column: Column = [],  # noqa: B006
    n_actions: NActions = None,
    quiet: Quiet = False,
) -> None:
    """Fit a model to DATA and keep it, to evaluate policies later with `vlbm evaluate --model DIR`.

    With `--search` settings are chosen first, by logged episodes alone; what was tried is kept in
    DIR/search.json.

    Example: `vlbm fit logs.parquet --save model --search halving --grid learning_rate=1e-3,3e-4 units=64,128`
    """
    if not learns_a_world(method):
        raise InputError(
            f"--method {method}: learns nothing before it knows the policies; use vlbm evaluate instead"
        )
    if grid and search is None:
        raise InputError("--grid: is what --search chooses from; add --search grid or --search halving")
    from vlbm.estimators.base import flatten_settings
    from vlbm.estimators.registry import make_estimator
    from vlbm.experiments.grids import PAPER, parse_grid
    from vlbm.experiments.select import RESULTS
    from vlbm.tracking import make_tracker

    estimator = make_estimator(method, preset, settings)
    candidates = () if search is None else parse_grid(type(estimator), grid or [PAPER])
    claim_save(context, save, resume=resume, overwrite=overwrite)
    if overwrite:
        (save / RESULTS).unlink(missing_ok=True)
    elif (save / RESULTS).exists() and search is not None and not resume:
        raise InputError(
            f"{save}: holds a search already ({RESULTS}); add --resume to continue it or --overwrite to "
            "replace it, or give another directory"
        )
    logged = load_episodes(data, column, n_actions)
    tracker = context.with_resource(make_tracker(track, save, name=f"fit {method}"))
    progress = make_progress(quiet)
    if search is not None:
        found = choose_settings(estimator, logged, candidates, search, score, seed, save, progress)
        estimator = replace(estimator, **found)
    tracker.describe(flatten_settings(asdict(estimator)))
    evaluator = fit_estimator(
        name_data(data), logged, estimator, seed, save, resume, tracker.follow(progress)
    )
    save_evaluator(evaluator, save)
    console = make_console()
    for index, history in enumerate(evaluator.histories):
        best = "none yet" if history.best_score is None else f"{history.best_score:.4g}"
        console.print(
            f"model {index}: validation {best} at step {history.best_step}, {history.seconds:.0f} s",
            highlight=False,
        )
    for note in evaluator.notes:
        console.print(f"warning: {note}", style="yellow", highlight=False, markup=False)
    console.print(f"saved to {save}", highlight=False)


def choose_settings(
    estimator: Any,
    logged: Episodes,
    candidates: tuple[dict[str, Any], ...],
    search: Search,
    score: Score,
    seed: int,
    save: Path,
    progress: Progress,
) -> dict[str, Any]:
    """The best settings of a grid, after a table of all; what was tried before is not tried again."""
    from vlbm.experiments.grids import describe_settings
    from vlbm.experiments.select import select_settings
    from vlbm.report.searches import print_search

    selection = select_settings(
        estimator,
        logged,
        candidates,
        search=search.value,
        score=score.value,
        seed=seed,
        directory=save,
        progress=progress,
    )
    console = make_console()
    print_search(selection, console)
    if not math.isfinite(selection.best.score):
        raise TrainingDivergedError("training diverged with all settings; give others (--grid)")
    found = dict(selection.best.settings)
    console.print(f"chosen: {describe_settings(found)}", highlight=False, markup=False)
    return found
