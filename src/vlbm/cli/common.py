"""What the commands have in common: options, loading, fitting, printing."""

from __future__ import annotations

import math
import shlex
from contextvars import ContextVar
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlbm.errors import InputError

# JAX and the readers are imported inside functions: --help should not wait for them.
if TYPE_CHECKING:
    from vlbm.data.episodes import Episodes
    from vlbm.progress import Progress


class Actions(StrEnum):
    mean = "mean"
    sample = "sample"


# The command line, which pages print to be reproducible.
command_arguments: ContextVar[tuple[str, ...]] = ContextVar("typed", default=())

Report = Annotated[Path | None, typer.Option(metavar="FILE", help="Write one HTML page to decide from.")]
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
Column = Annotated[
    list[str],
    typer.Option(
        metavar="ROLE=NAME",
        help="For tables: which column or prefix is the observation, action, reward, episode, step, "
        "terminated, truncated, log_prob or next_observation.",
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
Seed = Annotated[int, typer.Option(help="The same seed gives the same numbers.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the interrupted run in the --save directory.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]


def load_episodes(path: str, column: list[str], n_actions: int | None) -> Episodes:
    from vlbm.data.readers import load

    return load(path, n_actions=n_actions, **parse_columns(column))


def parse_columns(column: list[str]) -> dict[str, Any]:
    """What --column says, as `load` takes it."""
    columns: dict[str, Any] = {}
    for entry in column:
        role, equals, names = entry.partition("=")
        if not equals:
            raise InputError(f"--column {entry}: expected ROLE=NAME, such as observation=obs")
        columns[role] = names.split(",") if "," in names else names
    return columns


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


def fit_estimator(
    path: str,
    logged: Episodes,
    estimator: Any,
    seed: int,
    save: Path | None,
    resume: bool,
    progress: Progress,
) -> Any:
    if resume and save is None:
        raise InputError("--resume needs --save DIR, the directory of the interrupted run")
    try:
        evaluator = estimator.fit(logged, seed=seed, directory=save, resume=resume, progress=progress)
    except InputError as error:
        # Prefix the data's path; errors of checkpoints have their own.
        raise InputError(str(error) if resume else f"{path}: {error}") from None
    return replace(evaluator, data={**evaluator.data, "path": path})


def learns_a_world(method: str) -> bool:
    """Whether a method fits a world model that can be saved."""
    from vlbm.estimators.registry import settings_type_of

    return hasattr(settings_type_of(method), "train_world")


def save_evaluator(evaluator: Any, directory: Path) -> None:
    """Save the fitted model, if the evaluator has one."""
    if hasattr(evaluator, "save"):
        evaluator.save(directory)


def check_policies(logged: Episodes, policies: dict[str, Any]) -> None:
    """Check sizes and actions of policies before training rather than after."""
    from vlbm.policies import check_actions, check_fit

    sizes: dict[str, Any] = {"action_size": logged.action_size, "discrete": logged.discrete}
    check_fit(policies, observation_size=logged.observation_size, **sizes)
    seen = logged.initial_observations()[:16]
    for name, policy in policies.items():
        check_actions(name, policy.mean(seen), batch=len(seen), **sizes)


def check_space(path: str, logged: Episodes, evaluator: Any) -> None:
    """Data that go with a saved model must be of the kind that it was fitted to."""
    for name in ("observation_size", "action_size", "discrete"):
        mine, wanted = getattr(logged, name), getattr(evaluator.space, name)
        if mine != wanted:
            raise InputError(
                f"{path}: {name.replace('_', ' ')} is {mine}, the model's is {wanted}; give its own data, "
                "or only policies"
            )


def check_writable(path: Path | None) -> None:
    if path is not None and path.is_dir():
        raise InputError(f"{path}: is a directory; give the name of a file")


def command_line() -> str:
    """The command that is running, as it can be typed again."""
    return shlex.join(["vlbm", *command_arguments.get()])


def make_console() -> Any:
    from rich.console import Console

    return Console()


def make_progress(quiet: bool) -> Progress:
    from vlbm.progress import TerminalProgress, silent

    return silent if quiet else TerminalProgress()
