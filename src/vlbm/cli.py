"""The command line: vlbm evaluate | fit | inspect | demo."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlbm.errors import InputError, TrainingDivergedError
from vlbm.version import VERSION

# JAX and the readers are imported inside the commands: --help should not wait for them.
if TYPE_CHECKING:
    from vlbm.episodes import Episodes
    from vlbm.estimators.world_model import WorldEvaluator
    from vlbm.progress import Progress
    from vlbm.rollout import Termination

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="How good is each policy, how sure is that, and when should it not be trusted? "
    "Answers from logged episodes, without running any policy.",
)


class Actions(StrEnum):
    mean = "mean"
    sample = "sample"


Method = Annotated[
    str, typer.Option(help="vlbm, or one of its ablations: vlm, vlm-rsa, vlm-rsa-mse, vlm-rsa-ensemble.")
]
Preset = Annotated[str, typer.Option(help="default (what measured best) or paper (as published).")]
Settings = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE ...", help="Change settings, such as steps=2000 branches=5."),
]
Column = Annotated[
    list[str],
    typer.Option(
        metavar="ROLE=NAME",
        help="For tables: which column or prefix is the observation, action, reward, episode, step, "
        "terminated, truncated, log_prob or next_observation.",
    ),
]
Choices = Annotated[
    int | None, typer.Option(help="How many discrete actions there are, if not all were logged.")
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same numbers.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the interrupted run in the --save directory.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]


@app.command()
def evaluate(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA POLICY...",
            help="Logged episodes (.hdf5, .npz, .parquet, .csv, minari:ID), then policies (.onnx, .pt, .zip, "
            ".safetensors, .npz, .pkl, module:function). DATA may be left out with --model.",
        ),
    ],
    method: Method = "vlbm",
    preset: Preset = "default",
    settings: Settings = [],  # noqa: B006 (typer wants a list; nobody changes it)
    discount: Annotated[float, typer.Option(help="Weight of the next step's reward.")] = 0.995,
    horizon: Annotated[
        int | None, typer.Option(help="Steps of an imagined episode. Default: the longest logged one.")
    ] = None,
    episodes: Annotated[int, typer.Option(help="Imagined episodes per policy and model.")] = 50,
    actions: Annotated[Actions, typer.Option(help="Policies act by their mean, or sample.")] = Actions.mean,
    termination: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="A rule you know: takes observations [batch, obs], says which of them end an episode.",
        ),
    ] = None,
    seed: Seed = 0,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Use a fitted model instead of fitting.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the fitted model, checkpoints and estimates here."),
    ] = None,
    resume: Resume = False,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the estimates as JSON.")] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the estimates as an HTML page.")
    ] = None,
    column: Column = [],  # noqa: B006
    choices: Choices = None,
    quiet: Quiet = False,
) -> None:
    """Estimate the value of every POLICY from DATA.

    Example: `vlbm evaluate logs.parquet candidates/*.onnx --report report.html`
    """
    from vlbm.policies import load_policies
    from vlbm.report.tables import print_estimates
    from vlbm.sources import is_data

    for path in (json, report):
        _check_writable(path)
    progress = _progress(quiet)
    rule = None if termination is None else _load_termination(termination)
    if model is not None:
        from vlbm.estimators.registry import load_model, parse_settings

        # A fitted model carries its initial states, so only policies are needed.
        paths = inputs[1:] if len(inputs) > 1 and is_data(inputs[0]) else inputs
        policies = load_policies(*paths)
        evaluator = load_model(model)
        changes = parse_settings(type(evaluator.settings), settings)
        if changes:
            evaluator = evaluator.with_settings(**changes)
    else:
        if len(inputs) < 2:
            raise InputError(f"{inputs[0]}: no policies were given; write vlbm evaluate DATA POLICY...")
        policies = load_policies(*inputs[1:])
        logged = _load(inputs[0], column, choices)
        _check_before_fitting(logged, policies)
        evaluator = _fit(inputs[0], logged, method, preset, settings, seed, save, resume, progress)
    estimates = evaluator.evaluate(
        policies,
        discount=discount,
        horizon=horizon,
        episodes=episodes,
        actions=actions.value,
        termination=rule,
        seed=seed,
        progress=progress.titled("imagining"),
    )
    if save is not None:
        evaluator.save(save)
        estimates.save_json(save / "estimates.json")
    if json is not None:
        estimates.save_json(json)
    if report is not None:
        estimates.report(report)
    print_estimates(estimates, _console())


@app.command()
def fit(
    data: Annotated[str, typer.Argument(metavar="DATA", help="Logged episodes.")],
    save: Annotated[Path, typer.Option(metavar="DIR", help="Where the model and its checkpoints go.")],
    method: Method = "vlbm",
    preset: Preset = "default",
    settings: Settings = [],  # noqa: B006
    seed: Seed = 0,
    resume: Resume = False,
    column: Column = [],  # noqa: B006
    choices: Choices = None,
    quiet: Quiet = False,
) -> None:
    """Fit a model to DATA and keep it, to evaluate policies later with `vlbm evaluate --model DIR`."""
    logged = _load(data, column, choices)
    evaluator = _fit(data, logged, method, preset, settings, seed, save, resume, _progress(quiet))
    evaluator.save(save)
    console = _console()
    for index, history in enumerate(evaluator.histories):
        console.print(
            f"model {index}: validation {history.best_score:.4g} at step {history.best_step}, "
            f"{history.seconds:.0f} s",
            highlight=False,
        )
    for note in evaluator.notes:
        console.print(f"warning: {note}", style="yellow", highlight=False, markup=False)
    console.print(f"saved to {save}", highlight=False)


@app.command()
def inspect(
    data: Annotated[str, typer.Argument(metavar="DATA", help="Logged episodes.")],
    column: Column = [],  # noqa: B006
    choices: Choices = None,
) -> None:
    """Say what is in DATA: episodes, lengths, returns, actions, missing pieces, warnings."""
    from vlbm.inspection import inspect as inspect_episodes
    from vlbm.inspection import render

    render(inspect_episodes(_load(data, column, choices)), _console())


@app.command()
def demo(
    output: Annotated[Path, typer.Option(metavar="DIR", help="Where results go.")] = Path("demo"),
    settings: Settings = [],  # noqa: B006
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Rank the 11 policies of the embedded Pendulum task and compare with the truth (a few minutes)."""
    import numpy as np

    from vlbm.estimators.registry import make_estimator
    from vlbm.metrics import absolute_error, rank_correlation, regret
    from vlbm.report.tables import print_estimates
    from vlbm.suites.pendulum import pendulum

    console, progress = _console(), _progress(quiet)
    task = pendulum()
    console.print(
        f"Pendulum: {task.episodes.count} logged episodes, {task.episodes.steps:,} steps, "
        f"{len(task.policies)} candidate policies. None of them will be run.",
        highlight=False,
    )
    evaluator = make_estimator("vlbm", "default", settings).fit(
        task.episodes, seed=seed, directory=output / "model", progress=progress
    )
    evaluator = replace(evaluator, data={**evaluator.data, "path": "embedded: pendulum"})
    evaluator.save(output / "model")
    estimates = evaluator.evaluate(
        task.policies, discount=task.discount, horizon=task.horizon, progress=progress.titled("imagining")
    )
    estimates.save_json(output / "estimates.json")
    estimates.report(output / "report.html", truth=task.truth)
    print_estimates(estimates, console, truth=task.truth)
    true = np.array([task.truth[name] for name in task.policies])
    console.print(
        f"\nAgainst the true returns, which the model never saw: rank correlation "
        f"[bold]{rank_correlation(estimates.values, true):.3f}[/], regret@1 {regret(estimates.values, true):.3f} "
        f"of the range, mean absolute error {absolute_error(estimates.values, true):.1f}",
        highlight=False,
    )
    console.print(f"The page: {output / 'report.html'}", highlight=False)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"vlbm {VERSION}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Run a command; what the user can mend is one line on standard error and exit code 2."""
    try:
        app(args=_spread_settings(sys.argv[1:] if arguments is None else arguments), prog_name="vlbm")
    except InputError as error:
        _fail(str(error), 2)
    except TrainingDivergedError as error:
        _fail(str(error), 3)


def _fail(message: str, code: int) -> None:
    typer.secho(f"error: {message}", fg=typer.colors.RED, err=True)
    raise SystemExit(code)


def _spread_settings(arguments: list[str]) -> list[str]:
    """`--set a=1 b=2` as `--set a=1 --set b=2`."""
    spread: list[str] = []
    setting = False
    for argument in arguments:
        assignment = re.match(r"[a-z_]+=", argument) is not None
        if setting and assignment and spread[-1] != "--set":
            spread.append("--set")
        spread.append(argument)
        setting = argument == "--set" or (setting and assignment)
    return spread


def _load(path: str, column: list[str], choices: int | None) -> Episodes:
    from vlbm.sources import load

    columns: dict[str, Any] = {}
    for entry in column:
        role, equals, names = entry.partition("=")
        if not equals:
            raise InputError(f"--column {entry}: expected ROLE=NAME, such as observation=obs")
        columns[role] = names.split(",") if "," in names else names
    return load(path, choices=choices, **columns)


def _check_before_fitting(logged: Episodes, policies: dict[str, Any]) -> None:
    """A policy that does not fit should be told before minutes of training, not after."""
    from vlbm.policies import check_fit

    check_fit(
        policies,
        observation_size=logged.observation_size,
        action_size=logged.action_size,
        discrete=logged.discrete,
    )


def _fit(
    path: str,
    logged: Episodes,
    method: str,
    preset: str,
    settings: list[str],
    seed: int,
    save: Path | None,
    resume: bool,
    progress: Progress,
) -> WorldEvaluator:
    from vlbm.estimators.registry import make_estimator

    if resume and save is None:
        raise InputError("--resume needs --save DIR, the directory of the interrupted run")
    estimator = make_estimator(method, preset, settings)
    evaluator = estimator.fit(logged, seed=seed, directory=save, resume=resume, progress=progress)
    return replace(evaluator, method=method, data={**evaluator.data, "path": path})


def _load_termination(specification: str) -> Termination:
    from vlbm.policies.function import import_object

    rule = import_object(specification)
    if not callable(rule):
        raise InputError(f"--termination {specification}: is not a function")
    return rule


def _check_writable(path: Path | None) -> None:
    if path is not None and path.is_dir():
        raise InputError(f"{path}: is a directory; give the name of a file")


def _console() -> Any:
    from rich.console import Console

    return Console()


def _progress(quiet: bool) -> Progress:
    from vlbm.progress import TerminalProgress, silent

    return silent if quiet else TerminalProgress()
