"""Estimates from learnt worlds: fit them once, then let every policy act in them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from vlbm.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimate import Estimates, from_returns
from vlbm.estimators.base import check_request
from vlbm.models.base import World
from vlbm.policies.base import Policy
from vlbm.progress import Progress, silent
from vlbm.rollout import Actions, Termination, rollout
from vlbm.storage import load_tree, read_information, save_tree, write_text
from vlbm.training import History
from vlbm.version import VERSION

MODEL_FILE = "model.safetensors"


class WorldSettings(Protocol):
    """What the settings of a world model must offer to be fitted and saved."""

    method: str
    models: int
    held_out: float
    start: str

    def train_world(
        self,
        training: Episodes,
        held_out: Episodes,
        *,
        key: PRNGKeyArray,
        checkpoint: Path | None,
        resume: bool,
        identity: dict[str, Any],
        progress: Progress,
    ) -> tuple[Any, History]: ...

    def empty_world(self, shape: Mapping[str, Any]) -> Any: ...

    def world_shape(self, world: Any) -> dict[str, Any]: ...


@dataclass(frozen=True, eq=False)
class WorldEvaluator:
    """Fitted worlds, ready to evaluate any policy."""

    settings: Any
    worlds: tuple[World, ...]
    initial: Float[np.ndarray, "starts obs"]  # logged initial observations
    horizon: int  # the longest logged episode
    seed: int
    data: Mapping[str, Any]
    histories: tuple[History, ...]
    seconds: float
    method: str = "vlbm"
    notes: tuple[str, ...] = ()

    @property
    def model(self) -> World:
        """The first world (the only one, unless several were asked for)."""
        return self.worlds[0]

    def evaluate(
        self,
        policies: Mapping[str, Policy] | Policy,
        *,
        discount: float = 0.995,
        horizon: int | None = None,
        episodes: int = 50,
        actions: Actions = "mean",
        termination: Termination | None = None,
        seed: int | None = None,
        progress: Progress = silent,
    ) -> Estimates:
        """The value of every policy, from `episodes` imagined episodes of each in every world."""
        from vlbm.policies import check_fit

        check_request(discount=discount, horizon=horizon, episodes=episodes)
        named = policies if isinstance(policies, Mapping) else {"policy": policies}
        if not named:
            raise InputError("no policies were given")
        world = self.worlds[0]
        check_fit(
            named,
            observation_size=world.observation.mean.shape[0],
            action_size=world.action.mean.shape[0],
            discrete=world.choices is not None,
        )
        began = time.monotonic()
        parts = [
            self.imagine(
                index,
                named,
                horizon=horizon,
                episodes=episodes,
                actions=actions,
                termination=termination,
                seed=seed,
                progress=progress,
            )
            for index in range(len(self.worlds))
        ]
        rows = tuple(
            from_returns(
                name,
                [part[name].returns(discount) for part in parts],
                length=float(np.mean([part[name].length.mean() for part in parts])),
            )
            for name in named
        )
        return Estimates(
            rows=rows,
            method=self.method,
            seed=self.seed if seed is None else seed,
            discount=discount,
            settings={
                **_plain(asdict(self.settings)),
                "horizon": horizon or self.horizon,
                "episodes": episodes,
                "actions": actions,
            },
            data=self.data,
            seconds={"fit": self.seconds, "evaluate": time.monotonic() - began},
            warnings=self.notes,
        )

    def imagine(
        self,
        index: int,
        policies: Mapping[str, Policy],
        *,
        horizon: int | None = None,
        episodes: int = 50,
        actions: Actions = "mean",
        termination: Termination | None = None,
        seed: int | None = None,
        progress: Progress = silent,
    ) -> dict[str, Episodes]:
        """Imagined episodes of every policy in one of the worlds."""
        seed = self.seed if seed is None else seed
        return rollout(
            self.worlds[index].pruned(),
            policies,
            start=self._starts(episodes, seed) if self.settings.start == "logged" else None,
            episodes=episodes,
            horizon=horizon or self.horizon,
            actions=actions,
            termination=termination,
            key=jax.random.fold_in(jax.random.key(seed), index),
            progress=progress,
        )

    def encode(self, episodes: Episodes) -> Float[np.ndarray, "steps+episodes latent"]:
        """The first world's latent of every observation, row for row as `episodes.observation`."""
        return self.model.encode(episodes)

    def with_settings(self, **changes: Any) -> WorldEvaluator:
        """The same fitted worlds, imagined otherwise (sampling, reencode_every, clip_margin, start)."""
        settings = replace(self.settings, **changes)
        worlds = tuple(replace(world, imagination=settings.imagination) for world in self.worlds)
        return replace(self, settings=settings, worlds=worlds)

    def save(self, directory: str | Path) -> None:
        """Everything needed to evaluate again: weights as safetensors, the rest as JSON."""
        directory = Path(directory)
        information = {
            "method": self.method,
            "version": VERSION,
            "settings": _plain(asdict(self.settings)),
            "shape": self.settings.world_shape(self.worlds[0]),
            "models": len(self.worlds),
            "starts": len(self.initial),
            "horizon": self.horizon,
            "seed": self.seed,
            "data": dict(self.data),
            "seconds": self.seconds,
            "notes": list(self.notes),
            "histories": [asdict(history) for history in self.histories],
        }
        save_tree(
            directory / MODEL_FILE, {"worlds": self.worlds, "initial": self.initial}, information=information
        )
        write_text(directory / "model.json", json.dumps(information, indent=2) + "\n")

    @classmethod
    def load(cls, directory: str | Path, settings_type_of: Callable[[str], type]) -> WorldEvaluator:
        """A saved evaluator; `settings_type_of` gives the dataclass of a method's settings."""
        path = Path(directory) / MODEL_FILE
        information = read_information(path)
        settings = settings_from(settings_type_of(information["method"]), information["settings"])
        shape = information["shape"]
        like: dict[str, Any] = {
            "worlds": tuple(settings.empty_world(shape) for _ in range(information["models"])),
            "initial": np.zeros((information["starts"], shape["observations"]), np.float32),
        }
        tree = load_tree(path, like)
        return cls(
            settings=settings,
            worlds=tree["worlds"],
            initial=tree["initial"],
            horizon=information["horizon"],
            seed=information["seed"],
            data=information["data"],
            histories=tuple(History(**history) for history in information["histories"]),
            seconds=information["seconds"],
            method=information["method"],
            notes=tuple(information["notes"]),
        )

    def _starts(self, episodes: int, seed: int) -> Float[np.ndarray, "episodes obs"]:
        """Logged initial observations, none used twice before all were used once."""
        generator = np.random.default_rng(seed)
        rounds = -(-episodes // len(self.initial))
        order = np.concatenate([generator.permutation(len(self.initial)) for _ in range(rounds)])
        return self.initial[order[:episodes]]


def fit_worlds(
    settings: Any,
    episodes: Episodes,
    *,
    seed: int,
    directory: Path | None,
    resume: bool,
    progress: Progress,
) -> WorldEvaluator:
    """Train as many worlds as asked for, each from its own seed and with its own held-out episodes."""
    check_enough(episodes)
    began = time.monotonic()
    worlds, histories, notes = [], [], list(episodes.notes)
    data = {"path": None, "episodes": episodes.count, "steps": episodes.steps}
    identity = {"settings": _plain(asdict(settings)), "data": episodes.fingerprint(), "seed": seed}
    for index in range(settings.models):
        training, held_out = episodes.split(settings.held_out, seed=seed + index)
        checkpoint = None if directory is None else directory / f"checkpoint_{index}.safetensors"
        title = "training" if settings.models == 1 else f"training {index + 1}/{settings.models}"
        world, history = settings.train_world(
            training,
            held_out,
            key=jax.random.fold_in(jax.random.key(seed), index),
            checkpoint=checkpoint,
            resume=resume,
            identity={**identity, "model": index},
            progress=progress.titled(title),
        )
        worlds.append(world)
        histories.append(history)
        if history.interrupted:
            notes.append(
                f"training was interrupted; the best model so far is used (model {index + 1} of "
                f"{settings.models}, step {history.best_step} of {settings.steps})"
            )
            break
    return WorldEvaluator(
        settings=settings,
        worlds=tuple(worlds),
        initial=episodes.initial_observations(),
        horizon=int(episodes.length.max()),
        seed=seed,
        data=data,
        histories=tuple(histories),
        seconds=time.monotonic() - began,
        method=settings.method,
        notes=tuple(notes),
    )


def check_enough(episodes: Episodes) -> None:
    """Refuse data that no model of the dynamics can be learnt from and validated on."""
    if episodes.count < 2:
        raise InputError("episodes: there is only 1, and validation needs one to hold out; give at least 2")
    if episodes.length.max() < 2:
        raise InputError(
            "episodes: every one has a single step, so there are no dynamics to learn; check the episode "
            "ids or ends (a world model needs steps that follow each other)"
        )


def settings_from(settings_type: type, values: Mapping[str, Any]) -> Any:
    """Settings from JSON: lists are tuples again; settings of another version are named."""
    known = {field.name for field in fields(settings_type)}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise InputError(
            f"the model was saved by another version of vlbm: unknown settings {', '.join(unknown)}"
        )
    return settings_type(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    )


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON keeps them, so that a saved and a fresh copy compare equal."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
