"""The objective against loops in NumPy, term by term and weight by weight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vlbm.data.sampler import Window
from vlbm.data.scaler import Scaler
from vlbm.estimators.world_models.vlbm import VLBM
from vlbm.nn.batch_norm import VARIANCE_FLOOR
from vlbm.worlds.vlbm import (
    BranchingModel,
    Noise,
    Terms,
    Weights,
    branch_weights,
    draw_noise,
    objective,
    rsa,
)

OBSERVATIONS, ACTIONS, STEPS, EPISODES = 3, 2, 5, 4
LENGTHS = (5, 2, 4, 1)  # two of them end before the window does, by termination and by truncation
TERMINATED = (True, True, False, True)
WEIGHTS = Weights(1.0, "pairwise", 0.7, 0.4, 0.6, 0.3, "both")
KINDS = [
    {"drive": drive, "start": start, "emission": emission, "ensemble": False}
    for drive in ("own", "encoder")
    for start, emission in (("prior", "state"), ("encoder", "state"), ("encoder", "difference"))
]
ENSEMBLES = [{**KINDS[0], "ensemble": True}, {**KINDS[4], "ensemble": True}]


def make_model(**settings: Any) -> BranchingModel:
    chosen = VLBM(branches=3, latents=2, units=4, head_units=(5, 4), g_units=(6,), **settings)
    model = chosen.build(
        observations=OBSERVATIONS,
        actions=ACTIONS,
        termination_rate=0.2,
        key=jax.random.key(0),
        action=Scaler.fit(np.random.default_rng(1).normal(1.0, 2.0, (50, ACTIONS))),
        observation=Scaler.fit(np.random.default_rng(2).normal(-1.0, 3.0, (50, OBSERVATIONS))),
        reward=Scaler.fit(np.random.default_rng(3).normal(0.5, 0.5, (50, 1))),
        change=eqx.tree_at(
            lambda scaler: scaler.scale, Scaler.identity(OBSERVATIONS), jnp.array([0.3, 0.5, 0.2])
        ),
        n_actions=None,
        imagination=chosen.imagination,
    )
    # Weights and normalisation away from where they start, where faults could hide.
    leaves, structure = jax.tree.flatten(eqx.filter(model, eqx.is_inexact_array))
    random = np.random.default_rng(4)
    moved = [leaf + 0.2 * random.normal(size=leaf.shape) for leaf in leaves]
    moved_model = eqx.combine(jax.tree.unflatten(structure, moved), model)
    moved_model = replace(
        moved_model, observation=model.observation, reward=model.reward, action=model.action
    )
    if model.branches.change is None:
        return moved_model
    return eqx.tree_at(lambda model: model.branches.change, moved_model, model.branches.change)


def make_batch() -> Window:
    """Ragged episodes; padding holds numbers that would show if they counted."""
    random = np.random.default_rng(5)
    length = np.array(LENGTHS)[:, None]
    at = np.arange(STEPS)
    return Window(
        observation=jnp.asarray(random.normal(size=(EPISODES, STEPS + 1, OBSERVATIONS))),
        action=jnp.asarray(random.normal(size=(EPISODES, STEPS, ACTIONS))),
        reward=jnp.asarray(random.normal(size=(EPISODES, STEPS))),
        terminated=jnp.asarray((at == length - 1) & np.array(TERMINATED)[:, None], float),
        valid=jnp.asarray(at < length),
    )


def evaluate(model: BranchingModel, batch: Window, noise: Noise) -> tuple[Terms, BranchingModel]:
    """The terms, averaged over episodes as training takes them, and the gradient of their weighted sum."""

    def total(model: BranchingModel) -> tuple[jax.Array, Terms]:
        each = jax.vmap(lambda window, noise: objective(model, window, noise, WEIGHTS)[0], axis_name="batch")
        terms = jax.tree.map(jnp.mean, each(batch, noise))
        return terms.total(WEIGHTS), terms

    gradient, terms = eqx.filter_grad(total, has_aux=True)(model)
    return terms, gradient


compiled = eqx.filter_jit(evaluate)


class Loop:
    """The objective written as loops over branches, steps and episodes, all in NumPy."""

    def __init__(self, model: BranchingModel, batch: Window, noise: Noise):
        self.model = model
        self.s = (np.asarray(batch.observation) - model.observation.mean) / model.observation.scale
        self.a = (np.asarray(batch.action) - model.action.mean) / model.action.scale
        self.r = (np.asarray(batch.reward) - model.reward.mean) / model.reward.scale
        self.d, self.valid = np.asarray(batch.terminated), np.asarray(batch.valid)
        self.noise = jax.tree.map(np.asarray, noise)
        self.branches = [
            jax.tree.map(lambda leaf, b=b: np.asarray(leaf[b]), model.branches) for b in range(3)
        ]
        self.w = np.asarray(model.weight_root) ** 2
        self.w = self.w / (1e-8 + self.w.sum())

    def dense(self, layer: Any, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Rows of examples through a hidden layer, normalised over those that count."""
        y = x @ np.asarray(layer.hidden.weight).T + np.asarray(layer.hidden.bias)
        if layer.norm is not None:
            chosen = y[counts]
            mean = chosen.mean(0) if len(chosen) else np.zeros(y.shape[1])
            variance = ((chosen - mean) ** 2).mean(0) if len(chosen) else np.zeros(y.shape[1])
            y = (y - mean) / np.sqrt(variance + VARIANCE_FLOOR) * np.asarray(layer.norm.gain)
            y = y + np.asarray(layer.norm.shift)
        return y / (1 + np.exp(-y)) if layer.activation == "silu" else np.maximum(y, 0)

    def mlp(self, mlp: Any, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
        for layer in mlp.layers:
            x = self.dense(layer, x, counts)
        return x @ np.asarray(mlp.last.weight).T + np.asarray(mlp.last.bias)

    def gaussian(self, network: Any, x: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, spread = np.split(self.mlp(network.mlp, x, counts), 2, axis=-1)
        spread = np.logaddexp(0, spread) + network.kind.floor
        return mean, np.sqrt(spread) if network.kind.spread == "variance" else spread

    @staticmethod
    def lstm(cell: Any, x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gates = x @ np.asarray(cell.weight_ih).T + h @ np.asarray(cell.weight_hh).T + np.asarray(cell.bias)
        i, f, g, o = np.split(gates, 4, axis=-1)
        sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c

    def infer(self, encoder: Any, noise: np.ndarray) -> tuple[list, list, list]:
        """Draws, distributions and hidden states of q, step by step."""
        everyone = np.ones(EPISODES, bool)
        q = [self.gaussian(encoder.initial, self.s[:, 0], everyone)]
        z = [q[0][0] + q[0][1] * noise[:, 0]]
        h = c = np.zeros((EPISODES, 4))
        hidden = []
        for t in range(1, STEPS + 1):
            inputs = np.concatenate([z[-1], self.a[:, t - 1], self.s[:, t]], axis=1)
            h, c = self.lstm(encoder.lstm, inputs, h, c)
            hidden.append(h)
            q.append(self.gaussian(encoder.later, h, self.valid[:, t - 1]))
            z.append(q[-1][0] + q[-1][1] * noise[:, t])
        return z, q, hidden

    def emit(self, b: int, z: np.ndarray, before: np.ndarray, seen: np.ndarray, paid: np.ndarray) -> tuple:
        """State, reward and probability of termination of rows of latents."""
        branch = self.branches[b]
        mean, scale = self.emit_state(b, z, before, seen)
        reward = self.gaussian(branch.reward, z, paid)
        logit = self.mlp(branch.termination.mlp, z, seen)[:, 0]
        return (mean, scale), (reward[0][:, 0], reward[1][:, 0]), 1 / (1 + np.exp(-logit))

    def emit_state(self, b: int, z: np.ndarray, before: np.ndarray, counts: np.ndarray) -> tuple:
        branch = self.branches[b]
        mean, scale = self.gaussian(branch.state, z, counts)
        if self.model.emission == "difference":
            mean, scale = before + branch.change * mean, branch.change * scale
        return mean, scale

    def emit_along(self, b: int, z: list[np.ndarray], before: np.ndarray) -> list[tuple]:
        """Emissions at all steps, normalised over all valid steps of all episodes together."""
        rows = [np.stack(z, axis=1).reshape(-1, 2), before.reshape(-1, OBSERVATIONS)]
        seen = np.concatenate([np.ones((EPISODES, 1), bool), self.valid], axis=1)
        paid = np.concatenate([np.zeros((EPISODES, 1), bool), self.valid], axis=1)
        state, reward, ends = self.emit(b, *rows, seen.reshape(-1), paid.reshape(-1))
        shape = (EPISODES, STEPS + 1)
        state = [part.reshape(*shape, -1) for part in state]
        reward = [part.reshape(shape) for part in reward]
        ends = ends.reshape(shape)
        return [
            ((state[0][:, t], state[1][:, t]), (reward[0][:, t], reward[1][:, t]), ends[:, t])
            for t in range(STEPS + 1)
        ]

    def mix(self, emissions: list[tuple]) -> tuple:
        def normal(parts: list[tuple]) -> tuple:
            mean = sum(w * part[0] for w, part in zip(self.w, parts, strict=True))
            return mean, np.sqrt(sum(w**2 * part[1] ** 2 for w, part in zip(self.w, parts, strict=True)))

        ends = sum(w * part[2] for w, part in zip(self.w, emissions, strict=True))
        return normal([part[0] for part in emissions]), normal([part[1] for part in emissions]), ends

    def run(self) -> dict[str, float]:
        model, noise = self.model, self.noise
        if model.ensemble:
            encoders = [jax.tree.map(lambda leaf, b=b: leaf[b], model.encoder) for b in range(3)]
            inferred = [self.infer(encoder, noise.encoder[:, b]) for b, encoder in enumerate(encoders)]
        else:
            inferred = [self.infer(model.encoder, noise.encoder)] * 3

        # The branches, all together because with differences they share the predicted state.
        own = [[noise.branch[:, 0, b] if model.start == "prior" else inferred[b][0][0]] for b in range(3)]
        memory = [(np.zeros((EPISODES, 4)), np.zeros((EPISODES, 4))) for _ in range(3)]
        priors: list[list] = [[], [], []]
        aligned: list[list] = [[], [], []]
        feeds_back = model.drive == "own" and model.emission == "difference"
        predicted = [self.s[:, 0]]
        for t in range(1, STEPS + 1):
            counts, step = self.valid[:, t - 1], []
            for b, branch in enumerate(self.branches):
                z = own[b][t - 1] if model.drive == "own" else inferred[b][0][t - 1]
                s = predicted[-1] if model.drive == "own" else self.s[:, t - 1]
                inputs = [z, self.a[:, t - 1]] + ([s] if model.emission == "difference" else [])
                memory[b] = self.lstm(branch.lstm, np.concatenate(inputs, axis=1), *memory[b])
                aligned[b].append(self.mlp(branch.g, memory[b][0], counts))
                priors[b].append(self.gaussian(branch.transition, aligned[b][-1], counts))
                own[b].append(priors[b][-1][0] + priors[b][-1][1] * noise.branch[:, t, b])
                step.append(self.emit_state(b, own[b][-1], predicted[-1], counts))
            if feeds_back:
                predicted.append(sum(w * state[0] for w, state in zip(self.w, step, strict=True)))

        logged = np.concatenate([self.s[:, :1], self.s[:, :-1]], axis=1)
        reconstructed = emitted = [self.emit_along(b, inferred[b][0], logged) for b in range(3)]
        if model.drive == "own":
            before = np.stack([predicted[0], *predicted[:-1]], axis=1) if feeds_back else logged
            emitted = [self.emit_along(b, own[b], before) for b in range(3)]
        mixed = [self.mix([emitted[b][t] for b in range(3)]) for t in range(STEPS + 1)]

        terms = dict.fromkeys(Terms._fields, 0.0)
        for n in range(EPISODES):
            for t in range(LENGTHS[n] + 1):
                terms["mixture"] += self.log_likelihood(mixed[t], n, t)
                terms["termination"] += self.termination(mixed[t], n, t)
                for b in range(3):
                    terms["reconstruction"] += self.log_likelihood(reconstructed[b][t], n, t)
                    terms["termination"] += self.termination(reconstructed[b][t], n, t)
                    q = [part[n] for part in inferred[b][1][t]]
                    if t == 0:
                        terms["initial_kl"] += kl(q, (np.zeros(2), np.ones(2)))
                        continue
                    terms["kl"] += kl(q, [part[n] for part in priors[b][t - 1]])
                    delta = aligned[b][t - 1][n] - inferred[b][2][t - 1][n]
                    pairs = [(delta[j] - delta[k]) ** 2 for j in range(4) for k in range(j + 1, 4)]
                    terms["rsa"] += sum(pairs) / len(pairs)
        return {name: value / EPISODES for name, value in terms.items()}

    def log_likelihood(self, emission: tuple, n: int, t: int) -> float:
        total = 0.0
        if t > 0 or self.model.emission == "state":
            total += gaussian_log_prob(self.s[n, t], emission[0][0][n], emission[0][1][n]).sum()
        if t > 0:
            total += gaussian_log_prob(self.r[n, t - 1], emission[1][0][n], emission[1][1][n])
        return total

    def termination(self, emission: tuple, n: int, t: int) -> float:
        d = self.d[n, t - 1] if t > 0 else 0.0
        return np.log(emission[2][n]) if d else np.log(1 - emission[2][n])


def gaussian_log_prob(x: Any, mean: Any, scale: Any) -> Any:
    return -0.5 * np.log(2 * np.pi) - np.log(scale) - (x - mean) ** 2 / (2 * scale**2)


def kl(q: Any, p: Any) -> float:
    return (np.log(p[1] / q[1]) + (q[1] ** 2 + (q[0] - p[0]) ** 2) / (2 * p[1] ** 2) - 0.5).sum()


def in_double(tree: Any) -> Any:
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.float64) if eqx.is_inexact_array(leaf) else leaf, tree
    )


def make_double(kind: dict[str, Any], normalisation: str = "batch") -> BranchingModel:
    return in_double(make_model(normalisation=normalisation, spread="variance", **kind))


def in_numpy(tree: Any) -> Any:
    """What the loops slice a thousand times, without asking JAX for every slice."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, tree)


def name_of(kind: dict[str, Any]) -> str:
    return "-".join(str(value) for value in kind.values())


@pytest.mark.parametrize(
    ("kind", "normalisation"),
    [
        *((kind, "batch") for kind in (*KINDS[:5], ENSEMBLES[1])),
        # Twice as slow as the others or covered by them, and made of the same parts.
        pytest.param(KINDS[4], "none", marks=pytest.mark.slow),
        *(pytest.param(kind, "batch", marks=pytest.mark.slow) for kind in (KINDS[5], ENSEMBLES[0])),
    ],
    ids=lambda value: value if isinstance(value, str) else name_of(value),
)
def test_terms_and_gradients_equal_those_of_loops_over_a_ragged_batch(kind: dict, normalisation: str) -> None:
    with jax.enable_x64(True):
        model = make_double(kind, normalisation)
        batch = in_double(make_batch())
        noise = in_double(draw_noise(model, batch, jax.random.key(6)))
        terms, gradient = compiled(model, batch, noise)
        model, batch, noise, gradient = in_numpy((model, batch, noise, gradient))
        expected = Loop(model, batch, noise).run()
        for name, value in terms._asdict().items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-9, err_msg=name)

        names, slopes = zip(*jax.tree_util.tree_flatten_with_path(gradient)[0], strict=True)
        leaves, structure = jax.tree.flatten(eqx.filter(model, eqx.is_inexact_array))
        random = np.random.default_rng(7)

        def total(index: int, direction: np.ndarray, step: float) -> float:
            moved = [*leaves]
            moved[index] = leaves[index] + step * direction
            changed = eqx.combine(jax.tree.unflatten(structure, moved), model)
            return Terms(**Loop(changed, batch, noise).run()).total(WEIGHTS)

        for index, (path, slope) in enumerate(zip(names, slopes, strict=True)):
            where = jax.tree_util.keystr(path)
            if any(part in where for part in (".mean", ".variance", ".low", ".high", ".scale", ".change")):
                continue  # what data decide, not the optimiser
            direction = random.normal(size=slope.shape)
            change = (total(index, direction, 1e-6) - total(index, direction, -1e-6)) / 2e-6
            np.testing.assert_allclose((slope * direction).sum(), change, rtol=1e-5, atol=1e-7, err_msg=where)


# The same kinds and sizes as above, whose programs are compiled by then.
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2]], ids=name_of)
def test_what_padding_holds_changes_nothing(kind: dict) -> None:
    with jax.enable_x64(True):
        model, batch = make_double(kind), in_double(make_batch())
        noise = in_double(draw_noise(model, batch, jax.random.key(0)))
        later = jnp.concatenate([jnp.ones((EPISODES, 1), bool), batch.valid], axis=1)
        other = replace(
            batch,
            observation=jnp.where(later[..., None], batch.observation, 7.0),
            action=jnp.where(batch.valid[..., None], batch.action, -5.0),
            reward=jnp.where(batch.valid, batch.reward, 100.0),
            terminated=jnp.where(batch.valid, batch.terminated, 1.0),
        )
        terms, others = compiled(model, batch, noise)[0], compiled(model, other, noise)[0]
        for before, after in zip(terms, others, strict=True):
            np.testing.assert_allclose(before, after, rtol=1e-9)


def test_long_windows_are_computed_in_pieces_without_changing_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import vlbm.worlds.base as module

    with jax.enable_x64(True):
        model, batch = make_double(KINDS[0]), in_double(make_batch())
        noise = in_double(draw_noise(model, batch, jax.random.key(0)))
        short = compiled(model, batch, noise)
        monkeypatch.setattr(module, "SHORT", 0)
        long = eqx.filter_jit(lambda *inputs: evaluate(*inputs))(model, batch, noise)
        for before, after in zip(jax.tree.leaves(short), jax.tree.leaves(long), strict=True):
            np.testing.assert_allclose(before, after, rtol=1e-6, atol=1e-9)


def test_branch_weights_are_squares_that_add_up_to_one() -> None:
    np.testing.assert_allclose(branch_weights(jnp.array([1.0, -2.0, 0.0])), [0.2, 0.8, 0.0], rtol=1e-6)


def test_pairwise_rsa_ignores_a_shift_of_all_units_and_mse_does_not() -> None:
    hidden = jnp.array([1.0, 2.0, 4.0])
    assert float(rsa(hidden + 3.0, hidden)) == pytest.approx(0.0)
    assert float(rsa(hidden + 3.0, hidden, "mse")) == pytest.approx(9.0)
    assert float(rsa(hidden + 3.0, hidden, "none")) == 0.0
