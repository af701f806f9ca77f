"""vlbm evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlbm.cli.common import (
    Actions,
    Backtest,
    Column,
    Confidence,
    HorizonText,
    Method,
    NActions,
    Overwrite,
    Preset,
    Quiet,
    Report,
    Resume,
    Seed,
    Settings,
    check_outputs,
    check_policies,
    check_space,
    claim_save,
    command_line,
    fit_estimator,
    load_episodes,
    make_console,
    make_progress,
    name_data,
    print_notes,
    read_horizon,
    save_evaluator,
    split_inputs,
)
from vlbm.errors import InputError
from vlbm.estimand import Estimand

if TYPE_CHECKING:
    from vlbm.worlds.rollout import Termination


def evaluate(
    context: typer.Context,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA... POLICY...",
            help="Logged episodes (.hdf5, .npz, .parquet, .csv, .jsonl, minari:ID), then policies (.onnx, "
            ".pt, .zip, .safetensors, .npz, .pkl, module:function). DATA may be left out with --model.",
        ),
    ],
    method: Method = "vlbm",
    preset: Preset = "default",
    settings: Settings = [],  # noqa: B006 (typer wants a list; nobody changes it)
    discount: Annotated[float, typer.Option(help="Weight of the next step's reward.")] = 0.995,
    horizon: HorizonText = None,
    episodes: Annotated[int, typer.Option(help="Imagined episodes per policy and model.")] = 50,
    actions: Annotated[Actions, typer.Option(help="Policies act by their mean, or sample.")] = Actions.mean,
    termination: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="A rule you know: takes observations [batch, obs], says which of them end an episode.",
        ),
    ] = None,
    confidence: Confidence = 0.95,
    seed: Seed = 0,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Use a fitted model instead of fitting.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the fitted model, checkpoints, estimates and evidence here."),
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the estimates as JSON; - is standard output."),
    ] = None,
    report: Report = None,
    column: Column = [],  # noqa: B006
    n_actions: NActions = None,
    backtest: Backtest = True,
    quiet: Quiet = False,
) -> None:
    """Estimate the value of every POLICY from DATA.

    Example: `vlbm evaluate logs.parquet candidates/*.onnx --report report.html`
    """
    from vlbm.estimators.base import check_request
    from vlbm.estimators.registry import make_estimator
    from vlbm.experiments.compare import find_notes
    from vlbm.policies import load_policies
    from vlbm.report.tables import print_estimates

    asked: dict[str, Any] = {"discount": discount, "horizon": read_horizon(horizon)}
    check_request(**asked, episodes=episodes, confidence=confidence)
    check_outputs(json, report)
    if save is not None and model is not None and save.resolve() == model.resolve():
        raise InputError(f"--save {save}: holds the model itself; give the run another directory")
    claim_save(context, save, resume=resume, overwrite=overwrite)
    with_diagnostics = report is not None or save is not None
    progress = make_progress(quiet)
    rule = None if termination is None else _load_termination(termination)
    if model is not None:
        from vlbm.estimators.registry import load_model, parse_settings

        # A fitted model carries its initial states, so only policies are needed; a page shows more with data.
        data, names = split_inputs(inputs, needs_data=False)
        policies = load_policies(*(names or inputs))
        evaluator = load_model(model)
        logged = load_episodes(data, column, n_actions) if data else None
        if logged is not None:
            check_space(name_data(data), logged, evaluator)
            evaluator = evaluator.with_log(logged)
        changes = parse_settings(type(evaluator.settings), settings)
        if changes:
            evaluator = evaluator.with_settings(**changes)
    else:
        data, names = split_inputs(inputs)
        if not names:
            raise InputError(f"{inputs[0]}: no policies were given; write vlbm evaluate DATA POLICY...")
        policies = load_policies(*names)
        logged = load_episodes(data, column, n_actions)
        policies = check_policies(logged, policies)
        estimator = make_estimator(method, preset, settings)
        estimand = Estimand.from_request(**asked, actions=actions.value, longest=logged.longest)
        print_notes(find_notes({method: estimator}, logged, policies, estimand))
        evaluator = fit_estimator(name_data(data), logged, estimator, seed, save, resume, progress)
    request: dict[str, Any] = {
        "episodes": episodes,
        "actions": actions.value,
        "termination": rule,
        "confidence": confidence,
        "seed": seed,
        "backtest": backtest,
        "progress": progress.with_title("imagining"),
    }
    console = make_console(json, report)
    if with_diagnostics:
        from vlbm.experiments.comparison import single_comparison
        from vlbm.experiments.evidence.collect import DiagnosticsCollector

        # A saved model may know longer episodes than the data beside it.
        asked["horizon"] = asked["horizon"] or evaluator.space.longest
        collector = DiagnosticsCollector.of(logged, **asked)
        estimates, evidence = collector.evaluate_with_diagnostics(evaluator, policies, **request)
        print_estimates(estimates, console)  # before anything is written, which a full disk may prevent
        run = single_comparison(
            estimates, evidence=evidence, logged=collector.summary, command=command_line()
        )
        if save is not None:
            from vlbm.report.saved import save_run

            save_evaluator(evaluator, save)
            estimates.save_json(save / "estimates.json")
            save_run(run, save)
        if report is not None:
            run.report(report)
    else:
        estimates = evaluator.evaluate(policies, **asked, **request)
        print_estimates(estimates, console)
    if json is not None:
        estimates.save_json(json)


def _load_termination(specification: str) -> Termination:
    from vlbm.policies.function import import_object

    rule = import_object(specification)
    if not callable(rule):
        raise InputError(f"--termination {specification}: is not a function")
    return rule
