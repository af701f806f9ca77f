"""vlbm compare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlbm.cli.common import (
    Actions,
    Backtest,
    Column,
    Confidence,
    Download,
    HorizonText,
    LikeD4rl,
    MethodSettings,
    NActions,
    Overwrite,
    Quiet,
    Report,
    Resume,
    Seed,
    Steps,
    TaskData,
    TaskPolicies,
    check_outputs,
    check_policies,
    claim_save,
    command_line,
    load_episodes,
    make_console,
    make_estimators,
    make_progress,
    print_notes,
    read_horizon,
    split_inputs,
)
from vlbm.errors import InputError
from vlbm.estimand import Estimand
from vlbm.writing import is_written_through

if TYPE_CHECKING:
    from vlbm.data.episodes import Episodes
    from vlbm.experiments.comparison import Comparison
    from vlbm.suites.base import Task

DEFAULT = "vlbm,wpdis"


def compare(
    context: typer.Context,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA... POLICY... | TASK",
            help="Logged episodes and policies, as for evaluate; or a task's name, such as hopper-medium.",
        ),
    ],
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Which estimators; `vlbm methods` lists them. Default: of vlbm,wpdis those that answer what "
            "is asked.",
        ),
    ] = None,
    settings: MethodSettings = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(help="Run every method so many times, from --seed on.")] = 1,
    discount: Annotated[
        float | None, typer.Option(help="Weight of the next step's reward. Default: 0.995, or the task's.")
    ] = None,
    horizon: HorizonText = None,
    actions: Annotated[
        Actions | None,
        typer.Option(help="Policies act by their mean, or sample. Default: mean, or the task's."),
    ] = None,
    steps: Steps = None,
    data: TaskData = None,
    policies: TaskPolicies = None,
    download: Download = False,
    like_d4rl: LikeD4rl = False,
    confidence: Confidence = 0.95,
    seed: Seed = 0,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep every finished estimate and checkpoint here.")
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write everything as JSON; - is standard output.")
    ] = None,
    report: Report = None,
    column: Column = [],  # noqa: B006
    n_actions: NActions = None,
    backtest: Backtest = True,
    quiet: Quiet = False,
) -> None:
    """Estimate by several methods and see whether they agree; with a TASK, also how right they are.

    Example: `vlbm compare hopper-medium --methods vlbm,fqe --seeds 3`
    """
    from vlbm.estimators.base import check_request
    from vlbm.experiments.compare import compare as compare_methods
    from vlbm.report.comparisons import print_comparison

    if seeds < 1:
        raise InputError(f"--seeds {seeds}: must be at least 1")
    request: dict[str, Any] = {
        "discount": 0.995 if discount is None else discount,
        "horizon": read_horizon(horizon),
        "actions": "mean" if actions is None else actions.value,
    }
    check_request(discount=request["discount"], horizon=request["horizon"], episodes=1, confidence=confidence)
    check_outputs(json, report)
    claim_save(context, save, resume=resume, overwrite=overwrite)
    known: dict[str, Any] = {}
    estimators = make_estimators(DEFAULT if methods is None else methods, settings)
    progress = make_progress(quiet)
    if len(inputs) == 1 and not Path(inputs[0]).exists():
        from vlbm.suites import load_task

        task = load_task(
            inputs[0],
            steps=steps,
            data=data,
            policies=policies,
            download=download,
            like_d4rl=like_d4rl,
            progress=progress,
        )
        logged, candidates = task.episodes, dict(task.policies)
        given = {"discount": discount, "horizon": request["horizon"], "actions": actions and actions.value}
        request = _request_of_task(task, given)
        known = {"truth": task.truth, "task": task.label}
    else:
        from vlbm.policies import load_policies

        files, names = split_inputs(inputs)
        if not names:
            raise InputError(f"{inputs[0]}: no policies were given; write vlbm compare DATA POLICY...")
        candidates = load_policies(*names)
        logged = load_episodes(files, column, n_actions)
    candidates = check_policies(logged, candidates)
    requested = Estimand.from_request(**request, longest=logged.longest)
    left_out = _drop_other_estimands(estimators, requested, logged) if methods is None else {}
    _announce(estimators, candidates, logged, requested)

    def add_left_out(comparison: Comparison) -> Comparison:
        return replace(comparison, failures={**left_out, **comparison.failures})

    collector = None
    if report is not None or save is not None:
        from vlbm.experiments.evidence.collect import DiagnosticsCollector

        collector = DiagnosticsCollector.of(logged, discount=request["discount"], horizon=request["horizon"])
    comparison = compare_methods(
        logged,
        candidates,
        estimators,
        seeds=range(seed, seed + seeds),
        directory=save,
        resume=resume,
        progress=progress,
        # What is written through cannot be written again.
        finished=(
            None
            if json is None or is_written_through(json)
            else lambda so_far: add_left_out(so_far).save_json(json)
        ),
        confidence=confidence,
        collector=collector,
        command=command_line(),
        backtest=backtest,
        **request,
        **known,
    )
    comparison = add_left_out(comparison)
    print_comparison(comparison, make_console(json, report))  # first: a full disk may prevent the rest
    if save is not None:
        from vlbm.report.saved import save_run

        save_run(comparison, save)
    if report is not None:
        comparison.report(report)
    if json is not None:
        comparison.save_json(json)


def _request_of_task(task: Task, given: dict[str, Any]) -> dict[str, Any]:
    """The question that a task has true returns for; another one is refused."""
    request: dict[str, Any] = {
        "discount": task.discount,
        "horizon": task.horizon,
        "actions": task.actions,
    }
    for name, value in given.items():
        if value not in (None, request[name]):
            raise InputError(
                f"--{name} {value}: the true returns of {task.name} are for {name} {request[name]}; "
                f"leave --{name} out, or compare on the data themselves: vlbm compare DATA POLICY..."
            )
    return request


def _announce(
    estimators: dict[str, Any], policies: dict[str, Any], logged: Episodes, requested: Estimand
) -> None:
    """Say before anything is trained who cannot answer what is asked for all policies."""
    from vlbm.experiments.compare import find_notes, find_unable

    unable = find_unable(estimators, logged, policies, requested)
    able = {method: estimator for method, estimator in estimators.items() if method not in unable}
    if able:  # if none is able, that is the error
        print_notes({method: [f"left out: {error}"] for method, error in unable.items()})
    print_notes(find_notes(able, logged, policies, requested))


def _drop_other_estimands(
    estimators: dict[str, Any], requested: Estimand, logged: Episodes
) -> dict[str, str]:
    """Remove estimators with another estimand than the requested one; the reasons by name."""
    reasons = {}
    for name, estimator in list(estimators.items()):
        try:
            estimand = estimator.check_estimand(requested, logged)
        except InputError:
            continue  # reported by compare()
        if estimand != requested:
            del estimators[name]
            reasons[name] = (
                f"it would estimate another quantity ({estimand}); to see it all the same, name it "
                f"(--methods {DEFAULT}); a second opinion on what was asked for: --methods vlbm,fqe"
            )
    return reasons
