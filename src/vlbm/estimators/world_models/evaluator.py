"""Estimates from learnt worlds: fit them once, then let every policy act in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from vlbm.data.episodes import Episodes
from vlbm.estimand import Estimand
from vlbm.estimators.base import Evaluator, Recorder, Space, flatten_settings
from vlbm.estimators.world_models.saved_model import read_model
from vlbm.nn.training import History, read_history
from vlbm.policies.base import Policy
from vlbm.progress import Progress, silent
from vlbm.results.behaviour import keep_rewards, only_rewards
from vlbm.results.diagnostics.lengths import length_warnings
from vlbm.results.diagnostics.support import Support
from vlbm.results.diagnostics.trust import OUTSIDE, support_warnings
from vlbm.results.estimate import Estimate, from_returns
from vlbm.schema import check_entries, refuse_damage
from vlbm.storage import check_numbers, load_tree, save_tree, write_text
from vlbm.version import VERSION
from vlbm.worlds.base import World
from vlbm.worlds.rollout import Termination, rollout

MODEL_FILE = "model.safetensors"
REWARDS = 1_000_000  # logged steps whose rewards are saved
# Of them, how many there are and of what type.
KEPT: dict[str, tuple[str, Any]] = {
    "reward": ("steps", np.float32),
    "length": ("episodes", np.int64),
    "terminated": ("episodes", bool),
}
SINGLE = "a single model: intervals leave out how far models disagree; fit several to see it (--set models=3)"


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
    def space(self) -> Space:
        shape = self.model.shape
        return Space(shape["observations"], shape["actions"], shape["n_actions"] is not None, self.horizon)

    @property
    def rewards(self) -> Episodes | None:
        return self.logged_rewards if self.log is None else self.log

    @property
    def initial_observations(self) -> Float[np.ndarray, "starts obs"]:
        return self.initial

    def estimate(
        self,
        policies: Mapping[str, Policy],
        estimand: Estimand,
        *,
        confidence: float,
        seed: int,
        progress: Progress,
        episodes: int,
        termination: Termination | None,
        recorder: Recorder | None,
    ) -> tuple[list[Estimate], list[str], bool]:
        """The returns of `episodes` imagined episodes of every policy in every world."""
        worlds: list[dict[str, Episodes]] = []
        with progress.shared_display(parts=len(self.worlds)) as shared:
            for index in range(len(self.worlds)):
                worlds.append(
                    self.imagine(
                        index,
                        policies,
                        estimand,
                        episodes=episodes,
                        termination=termination,
                        seed=seed,
                        progress=shared,
                    )
                )
                if recorder is not None:
                    recorder(index, worlds[-1])
        rows = [
            self._row(name, [imagined[name] for imagined in worlds], estimand.discount, confidence)
            for name in policies
        ]
        warnings = [] if len(self.worlds) > 1 else [SINGLE]
        if self.rewards is not None:
            every = [imagined[name] for imagined in worlds for name in policies]
            warnings += length_warnings(every, self.rewards, estimand.horizon)
        return rows, warnings, any(history.interrupted for history in self.histories)

    def _row(self, name: str, imagined: list[Episodes], discount: float, confidence: float) -> Estimate:
        row = from_returns(
            name,
            [episodes.returns(discount) for episodes in imagined],
            length=float(np.mean([episodes.length.mean() for episodes in imagined])),
            logged=self.data["episodes"],
            confidence=confidence,
        )
        ended = np.mean([episodes.terminated.mean() for episodes in imagined])
        row = replace(row, terminated=float(ended))
        if self.support is None:
            return row
        outside = float(np.mean([self.support.outside_share(episodes) for episodes in imagined]))
        return replace(row, warnings=support_warnings(outside), details={OUTSIDE: outside})

    def imagine(
        self,
        index: int,
        policies: Mapping[str, Policy],
        estimand: Estimand,
        *,
        episodes: int,
        termination: Termination | None = None,
        seed: int = 0,
        progress: Progress = silent,
    ) -> dict[str, Episodes]:
        """Imagined episodes of every policy in one of the worlds."""
        assert estimand.horizon is not None  # settings refuse it
        return rollout(
            self.worlds[index],
            policies,
            start=self._starts(episodes, seed) if self.settings.start != "prior" else None,
            episodes=episodes,
            horizon=estimand.horizon,
            actions=estimand.actions,
            termination=termination,
            key=jax.random.fold_in(jax.random.key(seed), index),
            progress=progress,
        )

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
            "shape": self.model.shape,
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
