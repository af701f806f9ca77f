"""The variational latent branching model as the paper writes it, for one episode, equation by equation.

`vmap` makes batches and branches of it, `scan` makes time. s_t are standardised states, z_t latents, h_t
hidden states; psi is the encoder, phi_b the decoder of branch b. docs/method.md says what is left open.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Scalar

from vlbm.data.sampler import Window
from vlbm.data.scaler import Scaler
from vlbm.nn.batch_norm import Over, average_over_time, update_averages
from vlbm.nn.distributions import Bernoulli, Normal
from vlbm.nn.layers import MLP, BernoulliMLP, GaussianMLP, LSTMCell
from vlbm.worlds.base import Imagination, Outcome, World, is_short, scan

RsaKind = Literal["pairwise", "mse", "none"]
TerminationKind = Literal["mixture", "branches", "both"]
Memory = tuple[Float[Array, " units"], Float[Array, " units"]]  # h_t and the cell of an LSTM


class Encoder(eqx.Module):
    """q(z_0|s_0) and q(z_t|z_{t-1}, a_{t-1}, s_t) (eq. 3)."""

    initial: GaussianMLP
    lstm: LSTMCell
    later: GaussianMLP

    def infer(self, noise: Array, s: Array, a: Array, valid: Array | None = None) -> tuple:
        """z_t and q(z_t|.) for t = 0..T, and h_t for t = 1..T; without `valid` by running averages."""
        everyone = None if valid is None else Over(jnp.array(True), ("batch",))
        first, first_moments = self.initial(s[0], everyone)
        z_0 = first.sample(noise[0])

        def step(carry: tuple[Memory, Array], inputs: tuple) -> tuple[tuple[Memory, Array], tuple]:
            (memory, z), (a, s, noise, valid) = carry, inputs
            memory = self.lstm(jnp.concatenate([z, a, s]), memory)
            q, moments = self.later(memory[0], None if valid is None else Over(valid, ("batch",)))
            z = q.sample(noise)
            return (memory, z), (z, q, memory[0], moments)

        start = ((jnp.zeros(self.lstm.hidden_size),) * 2, z_0)
        _, (z, q, hidden, moments) = scan(step, start, (a, s[1:], noise[1:], valid))
        z, q = jax.tree.map(lambda first, later: jnp.concatenate([first[None], later]), (z_0, first), (z, q))
        return z, q, hidden, (first_moments, average_over_time(moments))


class Emission(NamedTuple):
    """p(s_t|z_t), p(r_{t-1}|z_t) and p(d_t|z_t)."""

    state: Normal
    reward: Normal
    termination: Bernoulli | None


class Branch(eqx.Module):
    """A decoder: h_t, h~_t = g(h_t) and p(z_t|h~_t) (eqs. 4 and 5), and what z_t emits."""

    lstm: LSTMCell
    g: MLP  # its last layer is linear: a rectified h~ could not meet the encoder's negative units
    transition: GaussianMLP
    state: GaussianMLP
    reward: GaussianMLP
    termination: BernoulliMLP | None
    change: Float[Array, " obs"] | None  # emission="difference": the deviation of logged differences

    def step(self, memory: Memory, z: Array, a: Array, s: Array, over: Over | None = None) -> tuple:
        """h_t, h~_t and p(z_t|h~_t) after z_{t-1} and a_{t-1}; with differences s_{t-1} is an input too."""
        memory = self.lstm(jnp.concatenate([z, a] if self.change is None else [z, a, s]), memory)
        aligned, g_moments = self.g(memory[0], over)
        prior, moments = self.transition(aligned, over)
        return memory, aligned, prior, (g_moments, moments)

    def emit_state(self, z: Array, before: Array, over: Over | None = None) -> tuple[Normal, Any]:
        """p(s_t|z_t), or with differences p(s_t - s_{t-1}|z_t) moved to the state before."""
        state, moments = self.state(z, over)
        if self.change is not None:
            change = jax.lax.stop_gradient(self.change)
            state = Normal(before + change * state.mean, change * state.scale)
        return state, moments

    def emit(self, z: Array, before: Array, over_s: Over | None = None, over_r: Over | None = None) -> tuple:
        """All that z_t emits; z_0 emits a state, but no reward came before it."""
        state, state_moments = self.emit_state(z, before, over_s)
        reward, reward_moments = self.reward(z, over_r)
        termination, moments = (None, None) if self.termination is None else self.termination(z, over_s)
        emission = Emission(state, Normal(reward.mean[0], reward.scale[0]), termination)
        return emission, (state_moments, reward_moments, moments)


def branch_weights(v: Float[Array, " branches"]) -> Float[Array, " branches"]:
    """w_b = v_b^2 / (eps + sum v^2): positive, and they add up to 1."""
    return v**2 / (1e-8 + (v**2).sum())


def mixture(emission: Emission, weights: Float[Array, " branches"]) -> Emission:
    """All branches as one: N(sum w mu, sum w^2 sigma^2) and Bernoulli(sum w mu_d) (eqs. 8 and 9)."""
    termination = None if emission.termination is None else emission.termination.mix(weights)
    return Emission(emission.state.mix(weights), emission.reward.mix(weights), termination)


def rsa(aligned: Array, hidden: Array, kind: RsaKind = "pairwise") -> Float[Array, "*steps"]:
    """How far a branch's h~_t is from the encoder's h_t (eq. 7).

    With delta = h~ - h, the mean over pairs j < k of (delta_j - delta_k)^2; their sum is M^2 var(delta).
    """
    delta, units = aligned - hidden, hidden.shape[-1]
    if kind == "none":
        return jnp.zeros(delta.shape[:-1])
    return (delta**2).mean(-1) if kind == "mse" else 2 * units / (units - 1) * delta.var(-1)


class Episode(NamedTuple):
    """A window in standardised units for t = 0..T, r_{t-1} standing at t; the masks say what counts."""

    s: Float[Array, "steps+1 obs"]
    a: Float[Array, "steps act"]
    r: Float[Array, " steps+1"]
    d: Float[Array, " steps+1"]
    valid: Bool[Array, " steps"]
    s_valid: Bool[Array, " steps+1"]  # s_0, and what followed a valid step
    r_valid: Bool[Array, " steps+1"]  # the same without s_0
    s_scored: Bool[Array, " steps+1"]  # which states have a likelihood: not the s_0 that differences start at

    @classmethod
    def of(cls, model: BranchingModel, window: Window) -> Episode:
        s, r = model.observation.apply(window.observation), model.reward.apply(window.reward[:, None])[:, 0]
        r, d = (jnp.concatenate([jnp.zeros(1), part]) for part in (r, window.terminated))
        s_valid, r_valid = (jnp.concatenate([jnp.array([first]), window.valid]) for first in (True, False))
        s_scored = s_valid if model.emission == "state" else r_valid
        return cls(s, model.scale_action(window.action), r, d, window.valid, s_valid, r_valid, s_scored)


def log_likelihood(emission: Emission, episode: Episode) -> Scalar:
    """log p(s_t|z_t) for t = 0..T and log p(r_{t-1}|z_t) for t = 1..T, of one branch or of the mixture."""
    state = jnp.where(episode.s_scored, emission.state.log_prob(episode.s).sum(-1), 0.0)
    return (state + jnp.where(episode.r_valid, emission.reward.log_prob(episode.r), 0.0)).sum()


def elbo(emission: Emission, posterior: Normal, prior: Normal, episode: Episode) -> tuple:
    """A branch's bound (eq. 6): reconstruction, KL(q(z_0|s_0)||N(0, I)), and KL(q(z_t|.)||p_b(z_t|.))."""
    first, later = (jax.tree.map(lambda part, at=at: part[at], posterior) for at in (0, slice(1, None)))
    kl = jnp.where(episode.valid, later.kl(prior).sum(-1), 0.0).sum()
    return log_likelihood(emission, episode), first.kl_from_standard().sum(), kl


def termination_log_prob(emission: Emission, episode: Episode) -> Scalar:
    """log p(d_t|z_t) for t = 0..T."""
    if emission.termination is None:
        return jnp.zeros(())
    return jnp.where(episode.s_valid, emission.termination.log_prob(episode.d), 0.0).sum()


class Noise(NamedTuple):
    """Standard normal numbers for one episode of training."""

    encoder: Float[Array, "*encoders steps+1 latent"]
    branch: Float[Array, "steps+1 branches latent"]  # the first is z_0, where that comes from the prior


def follow(model: BranchingModel, z: Array, episode: Episode, noise: Array) -> tuple:
    """All branches along the logged actions (eq. 5): z_t, the state before, h~_t, p_b(z_t|h~_t), moments.

    drive="own": each follows its own latents (Algorithm 1) and, with differences, the mixture's prediction;
    drive="encoder": each is given the encoder's latents z and the logged states (teacher forcing).
    """
    z = jnp.moveaxis(z, 0, 1) if model.ensemble else jnp.repeat(z[:, None], noise.shape[1], axis=1)
    z_0 = noise[0] if model.start == "prior" else z[0]

    def step(carry: tuple[Memory, Array, Array], inputs: tuple) -> tuple[Any, Any]:
        (memory, own, s), (z, logged, a, noise, valid) = carry, inputs
        over = Over(valid, ("batch",))
        if model.drive == "encoder":
            own, s = z, logged
        each = eqx.filter_vmap(lambda branch, *inputs: branch.step(*inputs, a, s, over))
        memory, aligned, prior, moments = each(model.branches, memory, own)
        own, before = prior.sample(noise), s
        if model.emission == "difference" and model.drive == "own":
            predict = eqx.filter_vmap(lambda branch, z: branch.emit_state(z, before, over)[0])
            s = predict(model.branches, own).mix(model.weight).mean
        return (memory, own, s), ((own, before, aligned, prior), moments)

    memory = (jnp.zeros((len(z_0), model.branches.lstm.hidden_size)),) * 2
    inputs = (z[:-1], episode.s[:-1], episode.a, noise[1:], episode.valid)
    _, ((own, before, aligned, prior), moments) = scan(step, (memory, z_0, episode.s[0]), inputs)
    own, before = jnp.concatenate([z_0[None], own]), jnp.concatenate([before[:1], before])
    return own, before, aligned, prior, average_over_time(moments)


def emit_along(model: BranchingModel, z: Array, before: Array, episode: Episode) -> tuple[Emission, Any]:
    """Every branch's emissions for t = 0..T at its own latents, or at those that all share."""

    def one(branch: Branch, z: Float[Array, "steps+1 latent"]) -> tuple[Emission, Any]:
        def at(z: Array, before: Array, s_valid: Array, r_valid: Array) -> tuple[Emission, Any]:
            axes = ("batch", "time")
            return branch.emit(z, before, Over(s_valid, axes), Over(r_valid, axes))

        return jax.vmap(at, axis_name="time", out_axes=(0, None))(z, before, episode.s_valid, episode.r_valid)

    if is_short(len(before)):
        return eqx.filter_vmap(one, in_axes=(eqx.if_array(0), 0 if z.ndim == 3 else None))(model.branches, z)
    # Whole episodes: one branch after the other, so that memory does not grow with their number.
    arrays, static = eqx.partition(model.branches, eqx.is_array)
    each = jax.checkpoint(lambda inputs: one(eqx.combine(inputs[0], static), inputs[1]))
    return jax.lax.map(each, (arrays, jnp.broadcast_to(z, (len(model.weight_root), *z.shape[-2:]))))


@dataclass(frozen=True)
class Weights:
    """How much each term of the objective counts."""

    mixture: float = 1.0  # 0 trains branches by their bounds alone, as the VLM is
    rsa: RsaKind = "pairwise"
    rsa_weight: float = 1.0  # C1
    elbo_weight: float = 1.0  # C2
    kl_weight: float = 1.0  # of KL(q(z_t|.)||p_b(z_t|.)) within the bound; 1 is the bound itself
    initial_kl_weight: float = 1.0  # of KL(q(z_0|s_0)||N(0, I)) within the bound
    termination: TerminationKind = "mixture"


class Terms(NamedTuple):
    """Parts of the objective, summed over an episode's steps, and over branches where each has its own."""

    mixture: Scalar
    reconstruction: Scalar
    initial_kl: Scalar
    kl: Scalar
    rsa: Scalar
    termination: Scalar

    def total(self, weights: Weights) -> Scalar:
        """What is maximised (eq. 10)."""
        kl = weights.initial_kl_weight * self.initial_kl + weights.kl_weight * self.kl
        bound = weights.elbo_weight * (self.reconstruction - kl)
        return weights.mixture * self.mixture - weights.rsa_weight * self.rsa + bound + self.termination


def objective(model: BranchingModel, window: Window, noise: Noise, weights: Weights) -> tuple[Terms, tuple]:
    """The VLBM objective of one episode (eq. 10), term by term, and the moments of encoder and branches.

    The bound is taken at the encoder's latents; mixture and termination where branches run free, if they do.
    """
    episode = Episode.of(model, window)
    infer = partial(Encoder.infer, s=episode.s, a=episode.a, valid=episode.valid)
    z, q, hidden, encoder_moments = model.over_encoders(infer, noise.encoder)
    own, before, aligned, prior, moments = follow(model, z, episode, noise.branch)
    logged = jnp.concatenate([episode.s[:1], episode.s[:-1]])
    reconstructed, emitted = emit_along(model, z, logged, episode)
    emission = reconstructed
    if model.drive == "own":
        emission, emitted = emit_along(model, jnp.moveaxis(own, 1, 0), before, episode)

    mixed = mixture(emission, model.weight)
    bound = jax.vmap(partial(elbo, episode=episode), in_axes=(0, 0 if model.ensemble else None, 1))
    reconstruction, initial_kl, kl = bound(reconstructed, q, prior)
    hidden = jnp.moveaxis(hidden, 0, 1) if model.ensemble else hidden[:, None]
    distance = jnp.where(episode.valid[:, None], rsa(aligned, hidden, weights.rsa), 0.0)
    of_mixture = termination_log_prob(mixed, episode)
    of_branches = jax.vmap(partial(termination_log_prob, episode=episode))(reconstructed).sum()
    termination = {"mixture": of_mixture, "branches": of_branches, "both": of_mixture + of_branches}
    terms = Terms(
        mixture=log_likelihood(mixed, episode),
        reconstruction=reconstruction.sum(),
        initial_kl=initial_kl.sum(),
        kl=kl.sum(),
        rsa=distance.sum(),
        termination=termination[weights.termination],
    )
    return terms, (encoder_moments, (moments, emitted))


def algorithm_1(model: BranchingModel, batch: Window, weights: Weights, *, key: PRNGKeyArray) -> tuple:
    """The loss a step of Algorithm 1 descends, its terms, and the model with updated running averages."""
    noise = draw_noise(model, batch, key)
    of_episode = jax.vmap(partial(objective, model, weights=weights), axis_name="batch", out_axes=(0, None))
    each, moments = of_episode(batch, noise)
    terms = jax.tree.map(jnp.mean, each)
    parts = tuple(map(update_averages, (model.encoder, model.branches), moments))
    moved = eqx.tree_at(lambda model: (model.encoder, model.branches), model, parts)
    return -terms.total(weights), terms, moved


def draw_noise(model: BranchingModel, batch: Window, key: PRNGKeyArray) -> Noise:
    """The noise of the objective of a batch."""
    episodes, steps = batch.reward.shape
    encoder = (episodes, *model.encoder_shape, steps + 1, model.latents)
    branch = (episodes, steps + 1, len(model.weight_root), model.latents)
    return Noise(*map(jax.random.normal, jax.random.split(key), (encoder, branch)))


class State(NamedTuple):
    """The state of a roll-out."""

    latent: Float[Array, "branches latent"]
    memory: Memory  # [branches, units]
    observation: Float[Array, " obs"]  # standardised
    age: Int[Array, ""]  # steps since the latents were last encoded


class StepNoise(NamedTuple):
    """Standard normal numbers for one imagined step."""

    latent: Float[Array, "branches latent"]
    initial: Float[Array, "*encoders latent"]  # of a latent that is encoded from an observation
    observation: Float[Array, " obs"]
    reward: Float[Array, " 1"]


class BranchingModel(World):
    """One encoder and B branches on its latent space (B = 1 is the VLM); as a world it is Algorithm 2."""

    encoder: Encoder  # stacked, one for every branch, where `ensemble` is set
    branches: Branch  # stacked
    weight_root: Float[Array, " branches"]  # v_b
    observation: Scaler
    reward: Scaler
    action: Scaler
    n_actions: int | None = eqx.field(static=True)
    terminates: bool = eqx.field(static=True)
    imagination: Imagination = eqx.field(static=True)
    drive: Literal["own", "encoder"] = eqx.field(static=True)  # whose latents a branch follows in training
    start: Literal["prior", "encoder"] = eqx.field(static=True)  # where its own z_0 comes from
    ensemble: bool = eqx.field(static=True)  # an encoder for every branch: B whole models
    window: int | None = eqx.field(static=True)  # steps it is trained on at once; None for whole episodes

    @property
    def weight(self) -> Float[Array, " branches"]:
        return branch_weights(self.weight_root)

    @property
    def emission(self) -> Literal["state", "difference"]:
        return "state" if self.branches.change is None else "difference"

    @property
    def latents(self) -> int:
        return self.branches.transition.mlp.last.weight.shape[-2] // 2

    @property
    def encoder_shape(self) -> tuple[int, ...]:
        return self.weight_root.shape if self.ensemble else ()

    def over_encoders(self, function: Any, noise: Array) -> Any:
        """The encoder's output, or with an encoder for every branch all outputs, stacked."""
        return (eqx.filter_vmap(function) if self.ensemble else function)(self.encoder, noise)

    def draw_noise(self, key: PRNGKeyArray) -> StepNoise:
        latent, branches = self.latents, len(self.weight_root)
        shapes = ((branches, latent), (*self.encoder_shape, latent), self.observation.mean.shape, (1,))
        drawn = {"all": 4, "latents": 2, "none": 0}[self.imagination.sampling]
        normal = map(jax.random.normal, jax.random.split(key, 4), shapes)
        return StepNoise(*list(normal)[:drawn], *map(jnp.zeros, shapes[drawn:]))

    def reset(self, observation: Float[Array, " obs"], noise: StepNoise) -> State:
        return self.encode(self.observation.apply(observation), noise.initial)

    def encode(self, s: Float[Array, " obs"], noise: Float[Array, "*encoders latent"]) -> State:
        """z_0 ~ q(z_0|s) for all branches, and empty memories."""
        z = self.over_encoders(lambda encoder, noise: encoder.initial(s)[0].sample(noise), noise)
        return self._begin(jnp.broadcast_to(z, (len(self.weight_root), self.latents)), s)

    def reset_from_prior(self, key: PRNGKeyArray) -> tuple[State, Float[Array, " obs"]]:
        """Every branch draws its own z_0 ~ N(0, I), whatever else is drawn: its mean is a single state."""
        latent_key, noise_key = jax.random.split(key)
        z = jax.random.normal(latent_key, (len(self.weight_root), self.latents))
        before = jnp.zeros(self.observation.mean.shape)
        state = eqx.filter_vmap(lambda branch, z: branch.emit_state(z, before)[0])(self.branches, z)
        s = self.clip(self.observation, state.mix(self.weight).sample(self.draw_noise(noise_key).observation))
        return self._begin(z, s), self.observation.invert(s)

    def step(self, state: State, action: Array, noise: StepNoise) -> tuple[State, Outcome]:
        """A step of Algorithm 2: every branch advances its own latents, the mixture emits."""
        a = self.scale_action(action)

        def move(branch: Branch, z: Array, memory: Memory, noise: Array) -> tuple[Array, Memory, Emission]:
            memory, _, p, _ = branch.step(memory, z, a, state.observation)
            z = p.sample(noise)
            return z, memory, branch.emit(z, state.observation)[0]

        z, memory, emission = eqx.filter_vmap(move)(self.branches, state.latent, state.memory, noise.latent)
        mixed = mixture(emission, self.weight)
        s = self.clip(self.observation, mixed.state.sample(noise.observation))
        r = self.clip(self.reward, mixed.reward.sample(noise.reward))
        moved = State(z, memory, s, state.age + 1)
        if self.imagination.reencode_every is not None:
            due = moved.age >= self.imagination.reencode_every
            moved = jax.tree.map(partial(jnp.where, due), self.encode(s, noise.initial), moved)
        terminates = jnp.zeros(()) if mixed.termination is None else mixed.termination.probability
        return moved, Outcome(self.observation.invert(s), self.reward.invert(r)[0], terminates)

    def _begin(self, z: Float[Array, "branches latent"], s: Float[Array, " obs"]) -> State:
        memory = (jnp.zeros((len(z), self.branches.lstm.hidden_size)),) * 2
        return State(z, memory, s, jnp.zeros((), jnp.int32))
