"""Features of observations that all policies share: learnt by forecasting what was logged after them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from vlbm.data.episodes import Episodes
from vlbm.estimators.critics.layers import MLP, Linear, stacked
from vlbm.nn.optimiser import Schedule
from vlbm.nn.training import LossOutput, train
from vlbm.progress import Progress

DISCOUNTS = (0.0, 0.9, 0.98)  # beside the one asked for: what comes at once, soon and later
COLUMNS = 32  # of observations that are forecast; of wider ones as many random mixtures
VALIDATION = 4096  # steps that the best features are chosen on
LOOKS = 10  # how often


class Trunk(eqx.Module):
    """Observations to features, by as many networks as there are models: the axis of models comes first."""

    layers: MLP  # stacked

    def __call__(self, observation: Float[Array, "batch obs"]) -> Float[Array, "models batch obs+units"]:
        """The observations themselves, and what the networks make of them."""
        found = jax.vmap(lambda layers: layers(observation))(self.layers)
        plain = jnp.broadcast_to(observation, (len(found), *observation.shape))
        return jnp.concatenate([plain, found], axis=-1)


class Forecaster(eqx.Module):
    """A trunk with one more layer, where actions enter: what comes after a logged step."""

    trunk: Trunk
    joint: Linear  # stacked
    head: Linear  # stacked

    def __call__(
        self, observation: Float[Array, "batch obs"], action: Float[Array, "batch act"]
    ) -> Float[Array, "models batch outputs"]:
        seen = self.trunk(observation)
        inputs = jnp.concatenate([seen, jnp.broadcast_to(action, (len(seen), *action.shape))], axis=-1)
        return jax.vmap(lambda joint, head, x: head(jax.nn.relu(joint(x))))(self.joint, self.head, inputs)


class Book(eqx.Module):
    """What features are learnt from: logged steps, and what was seen and earned after them."""

    observation: Float[Array, "rows obs"]
    action: Float[Array, "steps act"]
    before: Int[Array, " steps"]  # row of the observation that was answered
    after: Float[Array, "steps outputs"]
    weight: Float[Array, "steps models"]  # 0 for what a model may not learn from
    pool: Int[Array, " usable"]

    def error(self, forecaster: Forecaster, step: Int[Array, " batch"]) -> Float[Array, "models batch"]:
        found = forecaster(self.observation[self.before[step]], self.action[step])
        return ((found - self.after[step]) ** 2).mean(axis=-1)


@dataclass(frozen=True)
class Lessons:
    """How features are learnt."""

    units: tuple[int, ...]
    schedule: Schedule
    batch: int


def learn_trunk(book: Book, lessons: Lessons, *, seed: int, progress: Progress) -> Trunk:
    """Features good at forecasting what came after logged steps.

    No policy has a say in them: what a policy is worth never depends on its company.
    """
    random = np.random.default_rng([seed, 4])
    sizes = [book.observation.shape[1], *lessons.units]
    inputs, last = sizes[0] + sizes[-1] + book.action.shape[1], sizes[-1]
    fresh = [
        Forecaster(
            Trunk(MLP(sizes, normalisation="layer", random=random)),
            Linear(inputs, last, random=random, gain=2**0.5),
            Linear(last, book.after.shape[1], random=random, gain=0.1),
        )
        for _ in range(book.weight.shape[1])
    ]

    def evaluate(forecaster: Forecaster, book: Book, key: PRNGKeyArray) -> LossOutput:
        step = book.pool[jax.random.randint(key, (lessons.batch,), 0, len(book.pool))]
        # A sum over models: each has its own gradient, whatever the others do.
        loss = (book.weight[step].T * book.error(forecaster, step)).mean(axis=1).sum()
        return LossOutput(loss, {"loss": loss}, forecaster)

    forecaster, history = train(
        evaluate,
        stacked(fresh),
        book,
        schedule=replace(lessons.schedule, validate_every=max(lessons.schedule.steps // LOOKS, 1)),
        validate=_validation(book, random),
        key=jax.random.key(seed),
        progress=progress,
    )
    if history.interrupted:  # there is nothing to stand on yet
        raise KeyboardInterrupt
    return forecaster.trunk


def _validation(book: Book, random: np.random.Generator):
    """The error on steps that a model never learns from; on all where none is left out."""
    pool, weight = np.asarray(book.pool), np.asarray(book.weight)
    unseen = pool[(weight[pool] == 0).any(axis=1)]
    unseen = unseen if len(unseen) else pool
    step = jnp.asarray(random.choice(unseen, min(VALIDATION, len(unseen)), replace=False))
    counts = jnp.asarray((weight[step] == 0).T if (weight[step] == 0).any() else weight[step].T)

    @eqx.filter_jit
    def error(forecaster: Forecaster, book: Book) -> Array:
        return (counts * book.error(forecaster, step)).sum() / counts.sum()

    return lambda forecaster: float(error(forecaster, book))


def what_came_after(
    episodes: Episodes,
    inputs: Float[np.ndarray, "rows obs"],
    goes_on: Float[np.ndarray, " steps"],
    *,
    discount: float,
    seed: int,
) -> Float[np.ndarray, "steps outputs"]:
    """Discounted sums of rewards, observations and of going on, each of mean 0 and deviation 1.

    Where an episode was cut off, it is taken to stay as it was at last: this is for features to learn
    from, not for values.
    """
    if inputs.shape[1] > COLUMNS:
        mixture = np.random.default_rng([seed, 5]).normal(size=(inputs.shape[1], COLUMNS))
        inputs = inputs @ (mixture / np.sqrt(inputs.shape[1])).astype(np.float32)
    reward = (episodes.reward - episodes.reward.mean()) / max(float(episodes.reward.std()), 1e-12)
    after = inputs[episodes.observation_before + 1]
    now = np.concatenate([reward[:, None], after, goes_on[:, None]], axis=1).astype(np.float32)
    last = np.cumsum(episodes.length) - 1
    parts = []
    for rate in (*(rate for rate in DISCOUNTS if rate < discount), discount):
        ahead = np.empty_like(now)
        stays = now[last] / (1 - min(rate, 0.999))
        for back in range(int(episodes.length.max())):
            step = (last - back)[back < episodes.length]
            future = stays if back == 0 else ahead[step + 1]
            ahead[step] = now[step] + rate * goes_on[step, None] * future
        deviation = ahead.std(axis=0)
        parts.append((ahead - ahead.mean(axis=0)) / np.where(deviation > 1e-6, deviation, 1.0))
    return np.concatenate(parts, axis=1)
