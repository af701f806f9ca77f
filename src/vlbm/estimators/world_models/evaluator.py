"""Estimates from learnt worlds: fit them once, then let every policy act in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from vlbm.data.episodes import Episodes
from vlbm.estimators.base import Evaluator, Request, flatten_settings
from vlbm.estimators.world_models.saved_model import read_model
from vlbm.nn.training import History, read_history
from vlbm.results.behaviour import keep_rewards, only_rewards
from vlbm.results.diagnostics.lengths import length_warnings
from vlbm.results.diagnostics.support import Support
from vlbm.results.diagnostics.trust import OUTSIDE, support_warnings
from vlbm.results.estimate import Estimate, Estimates, from_returns
from vlbm.schema import check_entries, refuse_damage
from vlbm.storage import check_numbers, load_tree, save_tree, write_text
from vlbm.version import VERSION
from vlbm.worlds.base import World
from vlbm.worlds.rollout import rollout

MODEL_FILE = "model.safetensors"
REWARDS = 1_000_000  # logged steps whose rewards are saved
# Of them, how many there are and of what type.
KEPT: dict[str, tuple[str, Any]] = {
    "reward": ("steps", np.float32),
    "length": ("episodes", np.int64),
    "terminated": ("episodes", bool),
}
SINGLE = "a single model: intervals leave out how far models disagree; fit several to see it (--set models=3)"


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
    logged_rewards: Episodes | None = field(default=None, repr=False)  # what a saved model keeps of the log

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

    @property
    def rewards(self) -> Episodes | None:
        return self.logged_rewards if self.log is None else self.log

    @property
    def initial_observations(self) -> Float[np.ndarray, "starts obs"]:
        return self.initial

    def estimate(self, request: Request) -> Estimates:
        """The returns of `episodes` imagined episodes of every policy in every world."""
        with request.progress.shared_display(parts=len(self.worlds)) as progress:
            shared = replace(request, progress=progress)
            parts = [self.imagine(index, shared) for index in range(len(self.worlds))]
        imagined = [episodes for part in parts for episodes in part.values()]
        endless = () if self.rewards is None else length_warnings(imagined, self.rewards, request.horizon)
        return self.tabulate(
            request,
            (self._row(name, [part[name] for part in parts], request) for name in request.policies),
            warnings=(*(() if len(self.worlds) > 1 else (SINGLE,)), *endless),
            interrupted=any(history.interrupted for history in self.histories),
            episodes=request.episodes,
        )

    def _row(self, name: str, imagined: list[Episodes], request: Request) -> Estimate:
        row = from_returns(
            name,
            [episodes.returns(request.discount) for episodes in imagined],
            length=float(np.mean([episodes.length.mean() for episodes in imagined])),
            logged=self.data["episodes"],
            confidence=request.confidence,
        )
        ended = np.mean([episodes.terminated.mean() for episodes in imagined])
        row = replace(row, terminated=float(ended))
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

    def with_log(self, log: Episodes) -> WorldEvaluator:
        """The same with the data beside it, if they are those that a loaded model was fitted to."""
        same = (self.data["episodes"], self.data["steps"]) == (log.count, log.steps)
        return replace(self, log=log) if same else self

    def save(self, directory: str | Path) -> None:
        """Everything needed to evaluate again: weights as safetensors, the rest as JSON."""
        directory = Path(directory)
        kept = None if self.rewards is None else keep_rewards(self.rewards, most=REWARDS)
        information = {
            "method": self.method,
            "version": VERSION,
            "settings": flatten_settings(asdict(self.settings)),
            "shape": self.settings.world_shape(self.worlds[0]),
            "models": len(self.worlds),
            "starts": len(self.initial),
            "references": None if self.support is None else len(self.support.references),
            "rewards": None if kept is None else {"steps": kept.steps, "episodes": kept.count},
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
        if kept is not None:
            tree["rewards"] = {name: getattr(kept, name) for name in KEPT}
        save_tree(directory / MODEL_FILE, tree, information=information)
        write_text(directory / "model.json", json.dumps(information, indent=2) + "\n")

    @classmethod
    def load(cls, directory: str | Path, settings_type_of: Callable[[str], type]) -> WorldEvaluator:
        """A saved evaluator; `settings_type_of` gives the dataclass of a method's settings."""
        path = Path(directory) / MODEL_FILE
        with refuse_damage(path, "save the model again, or fit it again"):
            return cls._read(path, settings_type_of)

    @classmethod
    def _read(cls, path: Path, settings_type_of: Callable[[str], type]) -> WorldEvaluator:
        information, settings, world = read_model(path, settings_type_of)
        shape = information["shape"]
        like: dict[str, Any] = {
            "worlds": (world,) * information["models"],
            "initial": jax.ShapeDtypeStruct((information["starts"], shape["observations"]), np.float32),
        }
        references = information.get("references")
        if references is not None:
            like["support"] = asdict(Support.empty(references, shape["observations"] + shape["actions"]))
        sizes = information.get("rewards")
        if sizes is not None:
            check_entries(sizes, {"steps": int, "episodes": int})
            like["rewards"] = {
                name: jax.ShapeDtypeStruct((sizes[count],), kind) for name, (count, kind) in KEPT.items()
            }
        tree = load_tree(path, like)
        check_numbers(path, tree)
        return cls(
            settings=settings,
            worlds=tree["worlds"],
            initial=tree["initial"],
            horizon=information["horizon"],
            seed=information["seed"],
            data=information["data"],
            histories=tuple(read_history(history) for history in information["histories"]),
            seconds=information["seconds"],
            notes=tuple(information["notes"]),
            support=Support(**tree["support"]) if "support" in tree else None,
            logged_rewards=only_rewards(**tree["rewards"]) if "rewards" in tree else None,
        )

    def _starts(self, episodes: int, seed: int) -> Float[np.ndarray, "episodes obs"]:
        """Logged initial observations, none used twice before all were used once."""
        generator = np.random.default_rng(seed)
        rounds = -(-episodes // len(self.initial))
        order = np.concatenate([generator.permutation(len(self.initial)) for _ in range(rounds)])
        return self.initial[order[:episodes]]
