"""Estimates from learnt worlds: fit them once, then let every policy act in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from vlbm.data.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimators.base import Answer, Evaluator, Request, flatten_settings
from vlbm.nn.training import History
from vlbm.results.diagnostics.support import Support
from vlbm.results.diagnostics.trust import OUTSIDE, support_warnings
from vlbm.results.estimate import Estimate, from_returns
from vlbm.storage import load_tree, read_information, save_tree, write_text
from vlbm.version import VERSION
from vlbm.worlds.base import World
from vlbm.worlds.rollout import rollout

MODEL_FILE = "model.safetensors"
SINGLE = "a single model: its intervals do not know how far models disagree; models=3 or more shows it"


class WorldSpace(NamedTuple):
    """What policies see and do in a learnt world, and for how long."""

    observation_size: int
    action_size: int
    discrete: bool
    longest: int


@dataclass(frozen=True, eq=False, kw_only=True)
class WorldEvaluator(Evaluator):
    """Fitted worlds, ready to evaluate any policy."""

    worlds: tuple[World, ...]
    initial: Float[np.ndarray, "starts obs"]  # logged initial observations
    horizon: int  # the longest logged episode
    histories: tuple[History, ...]
    support: Support | None = None  # where the log has data; unknown for data larger than memory

    @property
    def model(self) -> World:
        """The first world (the only one, unless several were asked for)."""
        return self.worlds[0]

    @property
    def space(self) -> WorldSpace:
        world = self.model
        return WorldSpace(
            world.observation.mean.shape[0],
            world.action.mean.shape[0],
            world.n_actions is not None,
            self.horizon,
        )

    def answer(self, request: Request) -> Answer:
        """The returns of `episodes` imagined episodes of every policy in every world."""
        parts = [self.imagine(index, request) for index in range(len(self.worlds))]
        rows = tuple(self._row(name, [part[name] for part in parts], request) for name in request.policies)
        return Answer(
            rows,
            {
                "horizon": request.horizon,
                "episodes": request.episodes,
                "actions": request.actions,
            },
            warnings=() if len(self.worlds) > 1 else (SINGLE,),
            interrupted=any(history.interrupted for history in self.histories),
        )

    def _row(self, name: str, imagined: list[Episodes], request: Request) -> Estimate:
        row = from_returns(
            name,
            [episodes.returns(request.discount) for episodes in imagined],
            length=float(np.mean([episodes.length.mean() for episodes in imagined])),
            logged=self.data["episodes"],
            confidence=request.confidence,
        )
        if self.support is None:
            return row
        outside = float(np.mean([self.support.outside_share(episodes) for episodes in imagined]))
        return replace(row, warnings=support_warnings(outside), details={OUTSIDE: outside})

    def imagine(self, index: int, request: Request) -> dict[str, Episodes]:
        """Imagined episodes of every policy in one of the worlds."""
        assert request.horizon is not None  # settings refuse it
        imagined = rollout(
            self.worlds[index],
            request.policies,
            start=self._starts(request.episodes, request.seed) if self.settings.start != "prior" else None,
            episodes=request.episodes,
            horizon=request.horizon,
            actions=request.actions,
            termination=request.termination,
            key=jax.random.fold_in(jax.random.key(request.seed), index),
            progress=request.progress,
        )
        if request.recorder is not None:
            request.recorder(index, imagined)
        return imagined

    def encode(self, episodes: Episodes) -> Float[np.ndarray, "steps+episodes latent"]:
        """The first world's latent of every observation, row for row as `episodes.observation`."""
        from vlbm.worlds.encoding import encode
        from vlbm.worlds.vlbm import BranchingModel

        if not isinstance(self.model, BranchingModel):
            raise TypeError(f"{type(self.model).__name__} has no latents")
        return encode(self.model, episodes)

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
            "settings": flatten_settings(asdict(self.settings)),
            "shape": self.settings.world_shape(self.worlds[0]),
            "models": len(self.worlds),
            "starts": len(self.initial),
            "references": None if self.support is None else len(self.support.references),
            "horizon": self.horizon,
            "seed": self.seed,
            "data": dict(self.data),
            "seconds": self.seconds,
            "notes": list(self.notes),
            "histories": [asdict(history) for history in self.histories],
        }
        tree = {"worlds": self.worlds, "initial": self.initial}
        if self.support is not None:
            tree["support"] = asdict(self.support)
        save_tree(directory / MODEL_FILE, tree, information=information)
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
        references = information.get("references")
        if references is not None:
            like["support"] = asdict(Support.empty(references, shape["observations"] + shape["actions"]))
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
            notes=tuple(information["notes"]),
            support=Support(**tree["support"]) if "support" in tree else None,
        )

    def _starts(self, episodes: int, seed: int) -> Float[np.ndarray, "episodes obs"]:
        """Logged initial observations, none used twice before all were used once."""
        generator = np.random.default_rng(seed)
        rounds = -(-episodes // len(self.initial))
        order = np.concatenate([generator.permutation(len(self.initial)) for _ in range(rounds)])
        return self.initial[order[:episodes]]


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
