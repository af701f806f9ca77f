"""What the commands have in common: options, loading, fitting, printing."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlbm.errors import InputError
from vlbm.writing import is_standard_output, is_written_through

# JAX and the readers are imported inside functions: --help should not wait for them.
if TYPE_CHECKING:
    from vlbm.data.episodes import Episodes
    from vlbm.progress import Progress


class Actions(StrEnum):
    mean = "mean"
    sample = "sample"


# The command line, which pages print to be reproducible.
command_arguments: ContextVar[tuple[str, ...]] = ContextVar("typed", default=())

Report = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write one HTML page to decide from; - is standard output."),
]
Method = Annotated[
    str, typer.Option(help="Which estimator: vlbm, wpdis, ...; `vlbm methods` lists them all.")
]
Preset = Annotated[
    str,
    typer.Option(
        help="default, quick (a first answer in minutes), thorough (the best, in about an hour) or paper (as "
        "published)."
    ),
]
Settings = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE ...", help="Change settings, such as steps=2000 branches=5."),
]
Data = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA...",
        help="Logged episodes: a file, or several that belong together (also 'logs/*.csv').",
    ),
]
Column = Annotated[
    list[str],
    typer.Option(
        metavar="ROLE=NAME",
        help="For tables: which column or prefix is the observation, action, reward, episode, step, "
        "terminated, truncated, log_prob, propensity or next_observation. Several columns of a vector: "
        "observation=a,b, or the option once for each.",
    ),
]
NActions = Annotated[
    int | None,
    typer.Option(
        "--choices", "--n-actions", help="How many discrete actions there are, if not all were logged."
    ),
]
HorizonText = Annotated[
    str | None,
    typer.Option(
        metavar="STEPS",
        help="Steps that count; inf for no time limit. Default: the longest logged episode, or the task's.",
    ),
]
Confidence = Annotated[float, typer.Option(help="Confidence level of the intervals.")]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="The same seed gives the same numbers.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the interrupted run in the --save directory.")
]
Backtest = Annotated[
    bool,
    typer.Option(
        "--backtest/--no-backtest",
        help="Clone the policy that logged the data, estimate it too, and compare with what it earned.",
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the run or model that is in the directory already.")
]
Steps = Annotated[int | None, typer.Option(help="For tasks whose data are simulated: how many logged steps.")]
TaskData = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="For dope/ tasks: D4RL's file, a directory of them, or minari:ID."),
]
TaskPolicies = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="For dope/ tasks: where DOPE's policies are. Default: $VLBM_DOPE."),
]
Download = Annotated[bool, typer.Option("--download", help="For dope/ tasks: fetch what is missing.")]
LikeD4rl = Annotated[
    bool, typer.Option("--like-d4rl", help="For dope/ tasks: simulate data like D4RL's ('regenerated').")
]
MethodSettings = Annotated[
    list[str],
    typer.Option("--set", metavar="METHOD.KEY=VALUE ...", help="Settings, such as vlbm.steps=500."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]


def load_episodes(paths: list[str], column: list[str], n_actions: int | None) -> Episodes:
    from vlbm.data.readers import load

    return load(paths, n_actions=n_actions, **parse_columns(column))


def split_inputs(inputs: list[str], *, needs_data: bool = True) -> tuple[list[str], list[str]]:
    """DATA and POLICY: the inputs that come first and are data, and the rest.

    Where data are needed the first input is read as such, whatever it is: errors then say what is wrong.
    """
    from vlbm.data.readers import is_data

    count = int(needs_data)
    while count < len(inputs) and is_data(inputs[count]):
        count += 1
    return inputs[:count], inputs[count:]


def name_data(paths: list[str]) -> str:
    """What messages and pages call the data."""
    shown = ", ".join(paths[:3])
    return f"{shown} and {len(paths) - 3} more" if len(paths) > 3 else shown


def parse_columns(column: list[str]) -> dict[str, Any]:
    """What --column says, as `load` takes it."""
    columns: dict[str, list[str]] = {}
    for entry in column:
        role, equals, names = entry.partition("=")
        if not equals:
            raise InputError(f"--column {entry}: expected ROLE=NAME, such as observation=obs")
        given = names.split(",") if "," in names else [names]
        columns[role] = [*columns.get(role, []), *given]
    # A single name may also be that of a family of columns, or empty.
    return {role: names[0] if len(names) == 1 else names for role, names in columns.items()}


def read_horizon(text: str | None) -> int | float | None:
    """What --horizon says, as `evaluate` takes it."""
    if text is None:
        return None
    if text.strip().lower() in ("inf", "endless"):
        return math.inf
    try:
        return int(text)
    except ValueError:
        raise InputError(
            f"--horizon {text}: give a whole number of steps, or inf for no time limit"
        ) from None


def make_estimators(methods: str, settings: Sequence[str], preset: str = "default") -> dict[str, Any]:
    """The methods that --methods names, each with what --set says of it."""
    from vlbm.estimators.registry import make_estimator

    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise InputError("--methods: none were given; write --methods vlbm,wpdis")
    own: dict[str, list[str]] = {name: [] for name in names}
    for assignment in settings:
        method, dot, rest = assignment.partition(".")
        if not dot or method not in own:
            raise InputError(f"--set {assignment}: expected METHOD.KEY=VALUE with a method of {methods}")
        own[method].append(rest)
    return {name: make_estimator(name, preset, own[name]) for name in own}


def fit_estimator(
    path: str,
    logged: Episodes,
    estimator: Any,
    seed: int,
    save: Path | None,
    resume: bool,
    progress: Progress,
) -> Any:
    try:
        evaluator = estimator.fit(logged, seed=seed, directory=save, resume=resume, progress=progress)
    except InputError as error:
        # Prefix the data's path; errors of checkpoints have their own.
        raise InputError(str(error) if resume else f"{path}: {error}") from None
    return replace(evaluator, data={**evaluator.data, "path": path})


def learns_a_world(method: str) -> bool:
    """Whether a method fits a world model that can be saved."""
    from vlbm.estimators.registry import settings_type_of

    return settings_type_of(method).imagines  # type: ignore[attr-defined]


def save_evaluator(evaluator: Any, directory: Path) -> None:
    """Save the fitted model, if the evaluator has one."""
    if hasattr(evaluator, "save"):
        evaluator.save(directory)


def check_policies(logged: Episodes, policies: dict[str, Any]) -> dict[str, Any]:
    """The policies as they act on these data; sizes and actions are checked before training, not after."""
    from vlbm.policies import check_actions, check_fit

    sizes: dict[str, Any] = {"action_size": logged.action_size, "discrete": logged.discrete}
    policies = check_fit(policies, observation_size=logged.observation_size, **sizes)
    seen = logged.initial_observations()[:16]
    for name, policy in policies.items():
        check_actions(name, policy.mean(seen), batch=len(seen), **sizes)
    return policies


def check_space(path: str, logged: Episodes, evaluator: Any) -> None:
    """Data that go with a saved model must be of the kind that it was fitted to."""
    for name in ("observation_size", "action_size", "discrete"):
        mine, wanted = getattr(logged, name), getattr(evaluator.space, name)
        if mine != wanted:
            raise InputError(
                f"{path}: {name.replace('_', ' ')} is {mine}, the model's is {wanted}; give its own data, "
                "or only policies"
            )


def claim_save(
    context: typer.Context, directory: Path | None, *, resume: bool, overwrite: bool, option: str = "--save"
) -> None:
    """Have the directory of a run to this command alone until it ends; what is in it is not lost unasked."""
    if directory is None:
        for asked, name in ((resume, "--resume"), (overwrite, "--overwrite")):
            if asked:
                raise InputError(f"{name} needs {option} DIR, the directory of the run")
        return
    from vlbm.directories import claim_directory

    context.with_resource(claim_directory(directory, resume=resume, overwrite=overwrite))


def check_outputs(*paths: Path | None) -> None:
    """Refuse what cannot be written before anything is computed."""
    given = [path for path in paths if path is not None]
    if sum(map(is_standard_output, given)) > 1:
        raise InputError(f"{given[1]}: two files would be mixed in standard output; give one of them a name")
    for path in given:
        if path.is_dir():
            raise InputError(f"{path}: is a directory; give the name of a file")
        if is_written_through(path):
            continue
        # The nearest folder that exists: the others are made.
        folder = next(parent for parent in Path(os.path.realpath(path)).parents if parent.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise InputError(f"{path}: cannot be written, {folder} is no folder for it; give another name")


def command_line() -> str:
    """The command that is running, as it can be typed again."""
    return shlex.join(["vlbm", *command_arguments.get()])


def print_notes(notes: Mapping[str, Sequence[str]]) -> None:
    """What is known of methods before anything is trained, on standard error."""
    from vlbm.terminal import SafeConsole

    console = SafeConsole(stderr=True)
    for method, texts in notes.items():
        for text in texts:
            console.print(f"note: {method}: {text}", style="yellow", highlight=False, markup=False)


def make_console(*outputs: Path | None) -> Any:
    """For what people read: on standard output, unless one of the files that are written goes there."""
    from vlbm.terminal import SafeConsole

    return SafeConsole(stderr=any(path is not None and is_standard_output(path) for path in outputs))


def make_progress(quiet: bool) -> Progress:
    from vlbm.progress import TerminalProgress, silent

    return silent if quiet else TerminalProgress()
