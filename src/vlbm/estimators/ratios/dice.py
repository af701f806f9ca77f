"""DICE: how much more often than the log a policy does something, as the saddle point of a Lagrangian."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vlbm.errors import InputError
from vlbm.estimators.critics.bellman import Logged
from vlbm.estimators.critics.networks import Critics
from vlbm.estimators.ratios.balance import Balance
from vlbm.estimators.ratios.batches import Batch
from vlbm.estimators.ratios.descent import averaged, moved, started
from vlbm.estimators.ratios.evaluator import Ratios, reading
from vlbm.estimators.ratios.functions import Reading
from vlbm.estimators.ratios.leap import Unknowns, inner, one_by_one, product, ridge, shortened, summed
from vlbm.estimators.ratios.objective import Lagrangian
from vlbm.nn.optimiser import Schedule

# Of the mean square of features. What changes slowly from step to step pulls on values by the square of
# how slowly, so that a ridge as large as 1e-3 would decide what values are.
RIDGE = 1e-5
DUAL_RIDGE = 1e-3  # where ratios are regularised anyway
BARE_RIDGE = 1e-4  # where they are not


@dataclass(frozen=True)
class DICE(Ratios):
    """Distribution corrections by the regularised Lagrangian (Yang et al., 2020), in their best setting.

    A policy is worth the logged rewards, each weighted by the ratio of the policy's discounted visits to
    logged ones. Ratios and values are networks that play against each other; `Lagrangian` says what
    for. As in the paper, the setting that did best regularises ratios, keeps rewards, positive ratios and
    the multiplier. `dualdice` (Nachum et al., 2019) and `gendice` (Zhang et al., 2020) are other settings:

    - `dualdice`: ratios regularised; no rewards, no positivity, no multiplier, not self-normalised.
    - `gendice`: values regularised, ratios not; no rewards; positivity and multiplier. The least steady of
      the three: where parts of the log are seen rarely, it does not settle, and warns.

    Last layers leap to the saddle point that the features below them allow, by linear equations, several
    times on the way and at the end; gradients alone circle around it. The learning rate of the hidden
    layers is tiny on purpose: where the log shows nothing of what a policy does, values that can be bent
    there run away, and ratios collapse.

    With `horizon=math.inf` the task is endless, and the discount must be below 1: an episode that was cut off
    goes on, one that ended earns nothing more. With a horizon, time is one more observation.

    The interval resamples episodes with their ratios held fixed, and holds what the value would be if what
    the ratios do not balance were made up for (`remainder`). Quantiles are those of the resampled value,
    for returns are never seen.
    `details` say how far ratios are from what sound ones must be: `mean_ratio` is 1 for these, and
    `imbalance` 0. Where a policy is deterministic and actions are vectors, no exact ratio exists, and what
    networks make of it is a guess that `effective_share` tells of.
    """

    steps: int = 500
    learning_rate: float = 1e-6
    # The game
    primal_regulariser: float = 0.0
    dual_regulariser: float = 1.0
    reward: bool = True  # whether the players see rewards; without, the same ratios are sought
    positive: bool = True
    normalised: bool = True  # a multiplier of its own for how much ends
    # What tables call it; the settings known by other names have these.
    method: str = "dice"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("primal_regulariser", "dual_regulariser"):
            if getattr(self, name) < 0:
                raise InputError(f"setting {name}={getattr(self, name)}: must not be negative")
        if not (self.primal_regulariser or self.dual_regulariser):
            raise InputError(
                "setting dual_regulariser=0: and without primal_regulariser there is no saddle point; "
                "make one of them positive"
            )
        if self.primal_regulariser and self.reward:
            raise InputError(
                "setting reward=true: together with primal_regulariser the ratios would be biased; set one "
                "of them off"
            )

    @property
    def stationary(self) -> bool:
        return False

    @property
    def lagrangian(self) -> Lagrangian:
        return Lagrangian(self.primal_regulariser, self.dual_regulariser, self.reward, self.normalised)

    def method_for(
        self, logged: Logged, balance: Balance, networks: list[Critics], policies: int
    ) -> SaddlePoint:
        rewards = balance.problem.episodes.reward[balance.problem.usable]
        spread = float(rewards.std()) or 1.0
        total = 1 / balance.share
        # Where ratios are 1, values solve the Bellman equation for rewards less what ratios cost.
        offset = (float(logged.offset) / spread if self.reward else 0.0) - self.dual_regulariser * total
        unit = max(total**0.5, float(logged.unit) / spread if self.reward else 0.0)
        if self.primal_regulariser:
            offset, unit = 0.0, 1.0
        discrete = balance.problem.episodes.discrete
        return SaddlePoint(
            primal=networks[0],
            dual=networks[1],
            value=reading(positive=False, offset=offset, unit=unit, policies=policies, discrete=discrete),
            ratio=reading(positive=self.positive, policies=policies, discrete=discrete),
            share=jnp.asarray(balance.share, jnp.float32),
            reward_unit=jnp.asarray(spread, jnp.float32),
            lagrangian=self.lagrangian,
            schedule=self.schedule,
            averaging=self.averaging,
        )


@dataclass(frozen=True)
class DualDICE(DICE):
    """DualDICE (Nachum et al., 2019): no rewards, no positivity, no multiplier, not self-normalised."""

    reward: bool = False
    positive: bool = False
    normalised: bool = False
    self_normalised: bool = False
    method: str = "dualdice"


@dataclass(frozen=True)
class GenDICE(DICE):
    """GenDICE (Zhang et al., 2020): values are regularised instead of ratios, and rewards are left out."""

    primal_regulariser: float = 1.0
    dual_regulariser: float = 0.0
    reward: bool = False
    method: str = "gendice"


class State(NamedTuple):
    primal: Critics
    dual: Critics
    multiplier: Float[Array, " policies"]
    optimisers: tuple[Any, Any, Any]
    averages: tuple[Critics, Critics]  # of the primal and the dual networks


class SaddlePoint(eqx.Module):
    """Values and the multiplier go down, ratios go up, all at once."""

    primal: Critics
    dual: Critics
    value: Reading
    ratio: Reading
    share: Float[Array, ""]
    reward_unit: Float[Array, ""]
    lagrangian: Lagrangian = eqx.field(static=True)
    schedule: Schedule = eqx.field(static=True)
    averaging: float = eqx.field(static=True)

    def begin(self) -> State:
        optimiser = self.schedule.optimiser()
        multiplier = jnp.zeros(self.ratio.policies)
        return State(
            self.primal,
            self.dual,
            multiplier,
            (
                started(optimiser, self.primal),
                started(optimiser, self.dual),
                jax.vmap(optimiser.init)(multiplier),
            ),
            (self.primal, self.dual),
        )

    def answer(self, state: State) -> Critics:
        return state.averages[1]

    def update(
        self, state: State, logged: Logged, batch: Batch, index: Array
    ) -> tuple[State, Float[Array, " policies"]]:
        optimiser = self.schedule.optimiser()

        def saddle(players: tuple[Critics, Critics, Array]) -> tuple[Array, Array]:
            primal, dual, multiplier = players
            beginnings = self.lagrangian.beginnings(
                self.value.chosen(primal, logged, batch.first, batch.first_choice),
                multiplier=multiplier,
                share=self.share,
            )
            steps = self.lagrangian.steps(
                self.value.logged(primal, logged, batch.step),
                self.value.chosen(primal, logged, logged.before[batch.step] + 1, batch.choice),
                self.ratio.logged(dual, logged, batch.step),
                multiplier=multiplier,
                reward=logged.reward[batch.step] / self.reward_unit,
                continuation=logged.discount * logged.goes_on[batch.step],
                share=self.share,
            )
            height = beginnings.mean(axis=-1) + steps.mean(axis=-1)
            # A sum: every policy has its own gradient, whatever the others do.
            return height.sum(), height

        players = (state.primal, state.dual, state.multiplier)
        (_, height), gradient = jax.value_and_grad(saddle, has_aux=True)(players)
        down, up, aside = gradient
        primal, first = moved(optimiser, down, state.optimisers[0], state.primal)
        dual, second = moved(optimiser, jax.tree.map(jnp.negative, up), state.optimisers[1], state.dual)
        updates, third = jax.vmap(optimiser.update)(aside, state.optimisers[2], state.multiplier)
        averages = averaged(state.averages, (primal, dual), index, self.averaging)
        return State(primal, dual, state.multiplier + updates, (first, second, third), averages), height

    def leap(self, state: State, logged: Logged, batches: Batch) -> State:
        alone = replace(self, value=replace(self.value, policies=1), ratio=replace(self.ratio, policies=1))

        def of_one(stacks: tuple[Critics, Critics], multiplier: Array, batches: Batch) -> Corrections:
            return alone.corrections(stacks, multiplier, logged, batches)

        by = one_by_one(of_one, state.averages, state.multiplier, batches)
        values, ratios = (
            Unknowns(reading, stack)
            for reading, stack in zip((self.value, self.ratio), state.averages, strict=True)
        )
        return state._replace(
            multiplier=state.multiplier + by.multiplier,
            primal=values.moved(state.primal, by.values),
            dual=ratios.moved(state.dual, by.ratios),
            averages=(values.moved(values.networks, by.values), ratios.moved(ratios.networks, by.ratios)),
        )

    def corrections(
        self, stacks: tuple[Critics, Critics], multiplier: Array, logged: Logged, batches: Batch
    ) -> Corrections:
        """How far last layers and the multiplier are from the saddle point that the features allow."""
        values, ratios = Unknowns(self.value, stacks[0]), Unknowns(self.ratio, stacks[1])
        game = self.lagrangian

        def moments(batch: Batch) -> Moments:
            continuation = logged.discount * logged.goes_on[batch.step]
            after = logged.before[batch.step] + 1
            raw, here = ratios.logged(logged, batch.step), self.value.unit * values.logged(logged, batch.step)
            there = values.chosen(logged, after, batch.choice)
            output = self.ratio.output(ratios.networks, logged, batch.step)
            ratio, shape = self.ratio.read(output), raw * self.ratio.slope(output)[:, None]
            value = self.value.logged(values.networks, logged, batch.step)
            value_after = self.value.chosen(values.networks, logged, after, batch.choice)
            residual = game.residual(
                value,
                value_after,
                multiplier=multiplier,
                reward=logged.reward[batch.step] / self.reward_unit,
                continuation=continuation,
                share=self.share,
            )
            lost = here - continuation * there
            begun = self.share * values.chosen(logged, batch.first, batch.first_choice).mean(axis=-1)
            if game.normalised:
                # The multiplier is one more unknown that goes down.
                here, lost = (
                    _extended(here, jnp.zeros_like(continuation)),
                    _extended(lost, (1 - continuation) / self.share),
                )
                begun = jnp.concatenate([begun, jnp.ones_like(begun[:, :1])], axis=-1)
            return Moments(
                raw=product(raw, raw),
                dual=product(shape, shape),
                primal=product(here, here),
                coupling=product(shape, lost),
                up=inner(shape, residual - game.dual_regulariser * ratio),
                down=begun - inner(lost, ratio) + game.primal_regulariser * inner(here, value),
            )

        found = summed(moments, batches)
        by_values, by_ratios = found.saddle_point(game)
        short = shortened(by_ratios, found.raw)
        by_values, by_ratios = by_values * short, by_ratios * short
        if not game.normalised:
            return Corrections(by_values, by_ratios, jnp.zeros_like(multiplier))
        return Corrections(by_values[:, :-1], by_ratios, jnp.nan_to_num(by_values[:, -1]))


class Corrections(NamedTuple):
    """Changes of what is moved at once."""

    values: Float[Array, "policies unknowns"]
    ratios: Float[Array, "policies unknowns"]
    multiplier: Float[Array, " policies"]


def _extended(features: Float[Array, "policies unknowns batch"], more: Float[Array, " batch"]) -> Array:
    return jnp.concatenate([features, jnp.broadcast_to(more, (len(features), 1, len(more)))], axis=1)


class Moments(NamedTuple):
    """What linear equations for both last layers are made of."""

    raw: Float[Array, "policies dual dual"]  # outputs of ratio networks, squared
    dual: Float[Array, "policies dual dual"]  # ratios, squared
    primal: Float[Array, "policies primal primal"]  # values, squared
    coupling: Float[Array, "policies dual primal"]  # ratios times what values lose from step to step
    up: Float[Array, "policies dual"]  # slopes of the Lagrangian
    down: Float[Array, "policies primal"]

    def saddle_point(self, game: Lagrangian) -> tuple[Array, Array]:
        """How far to go, down in values and up in ratios, to where there is no slope."""
        values = game.primal_regulariser * self.primal + ridge(self.primal, weight=RIDGE)
        curved = DUAL_RIDGE * game.dual_regulariser if game.dual_regulariser else BARE_RIDGE
        ratios = game.dual_regulariser * self.dual + ridge(self.raw, weight=curved)
        transposed = jnp.swapaxes(self.coupling, -1, -2)
        system = jnp.concatenate(
            [
                jnp.concatenate([values, -transposed], axis=-1),
                jnp.concatenate([self.coupling, ratios], axis=-1),
            ],
            axis=-2,
        )
        side = jnp.concatenate([-self.down, self.up], axis=-1)
        found = jnp.linalg.solve(system, side[..., None])[..., 0]
        return found[:, : self.down.shape[-1]], found[:, self.down.shape[-1] :]
