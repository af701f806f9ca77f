"""The variational power method: visits of a policy as the distribution that its own steps leave unchanged."""

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
from vlbm.nn.optimiser import Schedule

POWER_STEPS = 100  # of the last layers, in one leap
RIDGE = 1e-4  # of the mean square of the features


@dataclass(frozen=True)
class VPM(Ratios):
    """The variational power method (Wen et al., 2020).

    A policy that begins anew wherever an episode ends, and with probability 1 - discount after any other
    step, leaves its discounted visits unchanged: they are the stationary distribution of that chain, and
    repeating a step of it from any other leads there. A step turns the ratio of visits to logged steps
    into the next, which is fitted to logged steps by least squares,

        mean of ratio^2 / 2 on logged steps - mean of ratio where the steps weighted so far lead,

    and no density has to be known. Ratios are positive and average 1; the value is what is earned per
    what ends: mean of ratio * reward over mean of ratio * (1 - discount, or 1 at an ending). The paper
    fits a step by a game between two networks; the squared form needs one.

    Last layers take their power steps by linear equations, between the gradient steps that shape the
    features below them.

    Endings, horizons, intervals, quantiles and warnings are as in `DICE`.
    """

    power_every: int = 20  # gradient steps that fit one power step
    power_rate: float = 0.5  # how far a power step goes; 1 goes all the way

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.power_every < 1:
            raise InputError(f"setting power_every={self.power_every}: must be at least 1")
        if not 0 < self.power_rate <= 1:
            raise InputError(f"setting power_rate={self.power_rate}: must be above 0 and at most 1")
        if not self.self_normalised:
            raise InputError("setting self_normalised=false: vpm knows ratios up to a factor; leave it out")

    @property
    def method(self) -> str:
        return "vpm"

    @property
    def stationary(self) -> bool:
        return True

    def method_for(
        self, logged: Logged, balance: Balance, networks: list[Critics], policies: int
    ) -> PowerIteration:
        return PowerIteration(
            networks=networks[0],
            ratio=reading(positive=True, policies=policies, discrete=balance.problem.episodes.discrete),
            schedule=self.schedule,
            averaging=self.averaging,
            every=self.power_every,
            rate=self.power_rate,
        )


class State(NamedTuple):
    online: Critics
    before: Critics  # the ratio that the present power step starts from
    average: Critics
    optimiser: Any


class PowerIteration(eqx.Module):
    """Ratios follow where the last ones lead."""

    networks: Critics
    ratio: Reading
    schedule: Schedule = eqx.field(static=True)
    averaging: float = eqx.field(static=True)
    every: int = eqx.field(static=True)
    rate: float = eqx.field(static=True)

    def begin(self) -> State:
        networks = self.networks
        return State(networks, networks, networks, started(self.schedule.optimiser(), networks))

    def answer(self, state: State) -> Critics:
        return state.average

    def loss(
        self, networks: Critics, before: Critics, logged: Logged, batch: Batch
    ) -> Float[Array, " policies"]:
        """Smallest where the ratio is one damped power step from the one before."""
        weight = self.ratio.logged(before, logged, batch.step)
        weight = weight / jnp.maximum(weight.mean(axis=-1, keepdims=True), 1e-6)
        continuation = logged.discount * logged.goes_on[batch.step]
        here = self.ratio.logged(networks, logged, batch.step)
        there = self.ratio.chosen(networks, logged, logged.before[batch.step] + 1, batch.choice)
        start = self.ratio.chosen(networks, logged, batch.first, batch.first_choice)
        went_on = (weight * continuation * there).mean(axis=-1)
        began_anew = (weight * (1 - continuation)).mean(axis=-1) * start.mean(axis=-1)
        stayed = (weight * here).mean(axis=-1)
        led = self.rate * (went_on + began_anew) + (1 - self.rate) * stayed
        return (here**2).mean(axis=-1) / 2 - led

    def update(
        self, state: State, logged: Logged, batch: Batch, index: Array
    ) -> tuple[State, Float[Array, " policies"]]:
        renewed = index % self.every == 0
        before = jax.tree.map(lambda old, new: jnp.where(renewed, new, old), state.before, state.online)

        def total(networks: Critics) -> tuple[Array, Array]:
            losses = self.loss(networks, before, logged, batch)
            # A sum: every policy has its own gradient, whatever the others do.
            return losses.sum(), losses

        (_, losses), gradient = jax.value_and_grad(total, has_aux=True)(state.online)
        online, optimiser = moved(self.schedule.optimiser(), gradient, state.optimiser, state.online)
        average = averaged(state.average, online, index, self.averaging)
        return State(online, before, average, optimiser), losses

    def leap(self, state: State, logged: Logged, batches: Batch) -> State:
        """Many power steps of the last layers, by linear equations for how they fit."""
        alone = replace(self, ratio=replace(self.ratio, policies=1))

        def of_one(networks: Critics, _: Array, batches: Batch) -> Array:
            return alone.correction(networks, logged, batches)

        by = one_by_one(of_one, state.average, jnp.zeros(self.ratio.policies), batches)
        unknowns = Unknowns(self.ratio, state.average)
        return state._replace(
            online=unknowns.moved(state.online, by),
            before=unknowns.moved(state.before, by),
            average=unknowns.moved(state.average, by),
        )

    def correction(
        self, networks: Critics, logged: Logged, batches: Batch
    ) -> Float[Array, "policies unknowns"]:
        """How far last layers are from where many power steps would lead them."""
        unknowns = Unknowns(self.ratio, networks)

        def moments(batch: Batch) -> Moments:
            continuation = logged.discount * logged.goes_on[batch.step]
            raw = unknowns.logged(logged, batch.step)
            output = self.ratio.output(unknowns.networks, logged, batch.step)
            ratio, here = self.ratio.read(output), raw * self.ratio.slope(output)[:, None]
            there = unknowns.chosen(logged, logged.before[batch.step] + 1, batch.choice)
            return Moments(
                raw=product(raw, raw),
                square=product(here, here),
                fitted=inner(here, ratio),
                mean=ratio.mean(axis=1),
                means=here.mean(axis=-1),
                led=inner(there, continuation * ratio),
                leads=product(continuation * there, here),
                start=unknowns.chosen(logged, batch.first, batch.first_choice).mean(axis=-1),
                ended=((1 - continuation) * ratio).mean(axis=1),
                ends=((1 - continuation) * here).mean(axis=-1),
            )

        found = summed(moments, batches)
        by = found.power_steps(self.rate)
        return by * shortened(by, found.raw)


class Moments(NamedTuple):
    """What the linear equations of a power step are made of; ratios change by `here` times the unknowns."""

    raw: Float[Array, "policies unknowns unknowns"]  # outputs, squared
    square: Float[Array, "policies unknowns unknowns"]  # changes of ratios, squared
    fitted: Float[Array, "policies unknowns"]
    mean: Float[Array, " policies"]  # of ratios
    means: Float[Array, "policies unknowns"]  # of changes of them
    led: Float[Array, "policies unknowns"]  # where ratios as they are lead
    leads: Float[Array, "policies unknowns unknowns"]  # where changes of them lead
    start: Float[Array, "policies unknowns"]
    ended: Float[Array, " policies"]  # how much begins anew
    ends: Float[Array, "policies unknowns"]

    def power_steps(self, rate: float) -> Float[Array, "policies unknowns"]:
        """The change of the unknowns after many power steps."""
        leads = self.leads + self.start[:, :, None] * self.ends[:, None]
        led = self.led + self.ended[:, None] * self.start - self.fitted
        solved = jnp.linalg.solve(
            self.square + ridge(self.raw, weight=RIDGE),
            jnp.concatenate([leads, led[..., None], self.fitted[..., None]], axis=-1),
        )

        def step(_: int, by: Array) -> Array:
            fitted = jnp.einsum("pij,pj->pi", solved[..., :-2], by) + solved[..., -2]
            return (1 - rate) * by + rate * fitted

        by = jax.lax.fori_loop(0, POWER_STEPS, step, jnp.zeros_like(self.fitted))
        # A step leaves the mean of ratios as it is, but fits do not quite: they are scaled to average 1.
        mean = self.mean + jnp.einsum("pi,pi->p", self.means, by)
        return by + (1 / jnp.maximum(mean, 0.1) - 1)[:, None] * (solved[..., -1] + by)
