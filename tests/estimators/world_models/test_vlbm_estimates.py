"""VLBM from fit to estimates, on a system whose endings are known; one trained model serves most tests."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from systems import Interrupting, bits, noise_logs
from vlbm.data.episodes import Episodes, from_padded
from vlbm.data.scaler import Scaler
from vlbm.data.view import EpisodeView
from vlbm.errors import InputError
from vlbm.estimand import Estimand
from vlbm.estimators.registry import load_model
from vlbm.estimators.world_models.evaluator import MODEL_FILE, SINGLE, WorldEvaluator
from vlbm.estimators.world_models.settings import select
from vlbm.estimators.world_models.vlbm import VLBM
from vlbm.nn.training import History
from vlbm.policies import FunctionPolicy, TracedPolicy
from vlbm.storage import load_tree, read_information, save_tree
from vlbm.worlds.vlbm import BranchingModel

HORIZON = 12
ASKED = Estimand(0.995, HORIZON, "mean")
# Every fit of these settings runs the same compiled program.
SETTINGS = VLBM(
    branches=2,
    models=1,
    keep=None,
    latents=4,
    units=16,
    head_units=(16,),
    g_units=(16,),
    drive="encoder",
    emission="state",
    window=None,
    batch=64,
    steps=400,
    learning_rate=1e-2,
    warm_up=20,
    validate_every=100,
)


def simulate(count: int, *, seed: int) -> Episodes:
    """s_1' = (s_1 + a + noise) / 2; after a step the system ends with 0.3 where s_1' > 0, else with 0.02."""
    random = np.random.default_rng(seed)
    state = random.normal(size=(count, 2))
    states, actions, rewards, ends = [state], [], [], []
    for _ in range(HORIZON):
        action = random.normal(size=(count, 1))
        first = 0.5 * (state[:, 0] + action[:, 0] + random.normal(size=count))
        second = 0.8 * state[:, 1] + 0.3 * random.normal(size=count)
        state = np.stack([first, second], axis=1)
        states.append(state)
        actions.append(action)
        rewards.append(state.sum(axis=1))
        ends.append(random.uniform(size=count) < np.where(first > 0, 0.3, 0.02))
    ended = np.stack(ends, axis=1)
    return from_padded(
        observation=np.stack(states, axis=1).astype(np.float32),
        action=np.stack(actions, axis=1).astype(np.float32),
        reward=np.stack(rewards, axis=1).astype(np.float32),
        length=np.where(ended.any(axis=1), ended.argmax(axis=1) + 1, HORIZON),
        terminated=ended.any(axis=1),
    )


def ending_probability(state: np.ndarray, action: np.ndarray) -> np.ndarray:
    return 0.02 + 0.28 * norm.cdf(state[:, 0] + action[:, 0])


class Push(TracedPolicy):
    """Always the same action."""

    amount: jax.Array

    observation_size = 2
    action_size = 1

    def mean(self, observation):
        return jnp.broadcast_to(self.amount, (*observation.shape[:-1], 1))

    def sample(self, observation, *, key):
        return self.mean(observation) + jax.random.normal(key, (*observation.shape[:-1], 1))


POLICIES = {
    "left": Push(jnp.array(-1.0)),
    "right": Push(jnp.array(1.0)),
    "function": FunctionPolicy(lambda seen: -np.asarray(seen)[:, :1]),
}


@pytest.fixture(scope="module")
def episodes() -> Episodes:
    return simulate(1500, seed=0)


@pytest.fixture(scope="module")
def fitted(episodes) -> WorldEvaluator:
    return SETTINGS.fit(episodes, seed=0)


@pytest.fixture(scope="module")
def interrupted(episodes, tmp_path_factory) -> tuple[WorldEvaluator, Path]:
    """A fit that was stopped at step 130, and the folder its checkpoint is in."""
    folder = tmp_path_factory.mktemp("interrupted")
    return SETTINGS.fit(episodes, seed=0, directory=folder, progress=Interrupting(130)), folder


def returns(
    evaluator: WorldEvaluator, policies: dict[str, Any] = POLICIES, **options: Any
) -> list[np.ndarray]:
    return [row.returns for row in evaluator.evaluate(policies, **{"episodes": 20, **options})]


@pytest.fixture(scope="module")
def imagined(fitted) -> list[np.ndarray]:
    return returns(fitted)


# What is learnt


def test_ending_probabilities_are_near_the_truth(fitted):
    random = np.random.default_rng(9)
    state, action = random.normal(size=(300, 2)), random.normal(size=(300, 1))
    draws = 64
    many = [jnp.asarray(np.repeat(part, draws, axis=0), jnp.float32) for part in (state, action)]

    @eqx.filter_jit
    def ending(world: BranchingModel, state: jax.Array, action: jax.Array, key: jax.Array) -> jax.Array:
        reset_key, step_key = jax.random.split(key)
        begun = world.reset(state, world.draw_noise(reset_key))
        return world.step(begun, action, world.draw_noise(step_key))[1].termination

    keys = jax.random.split(jax.random.key(0), len(many[0]))
    chance = eqx.filter_vmap(ending, in_axes=(None, 0, 0, 0))(fitted.model, *many, keys)
    learnt = np.asarray(chance).reshape(-1, draws).mean(axis=1)
    truth = ending_probability(state, action)
    # A model that knew only the average would be off by 0.08.
    assert np.abs(learnt - truth).mean() < 0.045
    assert np.corrcoef(learnt, truth)[0, 1] > 0.9


def test_training_leaves_alone_what_the_data_decide(fitted, episodes):
    training, _ = episodes.split(SETTINGS.held_out, seed=0)
    world = fitted.model
    assert bits(world.observation) == bits(Scaler.fit(training.observation))
    assert bits(world.reward) == bits(Scaler.fit(training.reward[:, None]))
    assert bits(world.action) == bits(Scaler.fit(training.action))


def test_a_fit_remembers_what_it_was_made_from(fitted, episodes):
    assert fitted.data == {"path": None, "episodes": episodes.count, "steps": episodes.steps}
    assert (fitted.horizon, fitted.seed, fitted.notes) == (HORIZON, 0, ())
    np.testing.assert_array_equal(fitted.initial, episodes.initial_observations())
    (history,) = fitted.histories
    assert [entry["step"] for entry in history.entries] == [100, 200, 300, 400]
    assert history.best_score == min(entry["validation"] for entry in history.entries)


# The same numbers again


def test_the_same_seed_gives_the_same_estimates_to_the_bit(fitted, imagined):
    assert bits(returns(fitted)) == bits(imagined)
    assert bits(returns(fitted, seed=0)) == bits(imagined)


def test_another_seed_gives_other_episodes(fitted, imagined):
    assert not set(bits(returns(fitted, seed=1))) & set(bits(imagined))


def test_an_estimate_does_not_depend_on_the_policies_beside_it(fitted, imagined):
    for name, expected in zip(POLICIES, imagined, strict=True):
        (alone,) = returns(fitted, {name: POLICIES[name]})
        np.testing.assert_allclose(alone, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_resumed_fit_equals_the_uninterrupted_one_to_the_bit(fitted, interrupted, episodes, imagined):
    _, folder = interrupted
    resumed = SETTINGS.fit(episodes, seed=0, directory=folder, resume=True)
    assert bits(resumed.worlds) == bits(fitted.worlds)
    assert resumed.histories[0].entries == fitted.histories[0].entries
    assert resumed.notes == ()
    assert bits(returns(resumed)) == bits(imagined)


def test_an_interrupted_fit_is_the_best_so_far_and_says_so(interrupted, fitted):
    evaluator, _ = interrupted
    (history,) = evaluator.histories
    assert history.interrupted
    assert history.entries == fitted.histories[0].entries[:1]
    assert "training was interrupted" in evaluator.notes[0]
    assert f"step {history.best_step} of 400" in evaluator.notes[0]
    assert evaluator.evaluate(POLICIES, episodes=20).warnings == (*evaluator.notes, SINGLE)


@pytest.mark.parametrize(
    ("change", "seed", "named"),
    [({"batch": 32}, 0, "batch"), ({"learning_rate": 1e-3}, 0, "learning_rate"), ({}, 1, "seed")],
)
def test_resuming_with_other_settings_is_refused_by_what_differs(interrupted, episodes, change, seed, named):
    _, folder = interrupted
    with pytest.raises(InputError, match=rf"checkpoint_0\.safetensors: cannot resume.* other {named};"):
        replace(SETTINGS, **change).fit(episodes, seed=seed, directory=folder, resume=True)


def test_resuming_with_other_data_is_refused(interrupted):
    _, folder = interrupted
    with pytest.raises(InputError, match=r"cannot resume.* other data;"):
        SETTINGS.fit(simulate(1500, seed=2), seed=0, directory=folder, resume=True)


# Several models


@dataclass(frozen=True)
class Recorder(VLBM):
    """Settings that remember what each model was to be trained on, and train none."""

    held_out: float = 0.25
    steps: int = 10
    models: int = 3
    keep: int | None = None
    interrupted_at: int | None = None
    scores: tuple[float, ...] = (1.0, 1.0, 1.0)
    calls: list[dict[str, Any]] = field(default_factory=list, compare=False)

    def train_world(
        self, training: EpisodeView, held_out: EpisodeView, **options: Any
    ) -> tuple[int, History]:
        index = options["identity"]["model"]
        self.calls.append({"training": training.to_episodes(), "held_out": held_out.to_episodes(), **options})
        stopped = index == self.interrupted_at
        if stopped:
            options["devices"].stop()
        score = self.scores[index]
        return index, History(
            [{"step": 7, "validation": score}], best_step=7, best_score=score, interrupted=stopped
        )

    def compare_with_baseline(self, *_: Any) -> tuple[str, ...]:
        return ()


def recorded(episodes: Episodes, *, seed: int = 0, **settings: Any) -> tuple[WorldEvaluator, list[dict]]:
    recorder = Recorder(**settings)
    return recorder.fit(episodes, seed=seed, directory="somewhere"), recorder.calls


def random_key(call: dict[str, Any]) -> bytes:
    """What the weights and the steps of a model are drawn from."""
    return np.asarray(jax.random.key_data(call["key"])).tobytes()


def test_every_model_has_its_own_random_key_and_checkpoint_and_all_are_validated_on_the_same_episodes():
    episodes = noise_logs((3,) * 20)
    fit, calls = recorded(episodes)
    assert fit.worlds == (0, 1, 2)
    # Scores on different episodes could not say which model is best.
    for name in ("training", "held_out"):
        assert len({call[name].fingerprint() for call in calls}) == 1
    assert len({random_key(call) for call in calls}) == 3
    assert [call["checkpoint"].name for call in calls] == [
        f"checkpoint_{index}.safetensors" for index in range(3)
    ]
    assert [call["identity"]["model"] for call in calls] == [0, 1, 2]
    for call in calls:
        assert (call["training"].count, call["held_out"].count) == (15, 5)
        seen = [{row.tobytes() for row in call[name].observation} for name in ("training", "held_out")]
        assert not seen[0] & seen[1]


def test_another_seed_trains_with_other_random_keys_on_another_split():
    episodes = noise_logs((3,) * 20)
    _, (first, *_) = recorded(episodes, seed=0)
    _, (again, *_) = recorded(episodes, seed=0)
    _, (other, *_) = recorded(episodes, seed=7)
    assert random_key(first) == random_key(again)
    assert first["training"].fingerprint() == again["training"].fingerprint()
    assert random_key(first) != random_key(other)
    assert first["training"].fingerprint() != other["training"].fingerprint()


@pytest.mark.parametrize("seed", [0, 7, 2**31, 2**40 + 3])
def test_a_seed_of_any_size_means_what_it_means_to_jax(seed):
    _, calls = recorded(noise_logs((3,) * 20), seed=seed)
    for index, call in enumerate(calls):
        assert random_key(call) == random_key({"key": jax.random.fold_in(jax.random.key(seed), index)})


def test_an_interruption_leaves_the_remaining_models_untrained():
    fit, calls = recorded(noise_logs((3,) * 20), interrupted_at=1)
    assert len(calls) == len(fit.worlds) == 2
    assert "2 of 3 models, step 7, 7 of 10" in fit.notes[0]
    assert all(history.interrupted for history in fit.histories)


@pytest.mark.parametrize(
    ("keep", "scores", "kept"),
    [
        (None, (3.0, 1.0, 2.0), (0, 1, 2)),
        (7, (3.0, 1.0, 2.0), (0, 1, 2)),  # more than there are
        (1, (3.0, 1.0, 2.0), (1,)),
        (2, (3.0, 1.0, 2.0), (1, 2)),
        (2, (1.0, np.nan, 2.0), (0, 2)),
        (2, (1.0, np.inf, np.nan), (0, 1)),
        (2, (1.0, 1.0, 1.0), (0, 1)),
    ],
)
def test_models_that_validate_worst_are_not_kept(keep, scores, kept):
    fit, calls = recorded(noise_logs((3,) * 20), keep=keep, scores=scores)
    assert len(calls) == 3
    assert fit.worlds == kept
    np.testing.assert_array_equal(
        [history.best_score for history in fit.histories], [scores[k] for k in kept]
    )


def test_a_model_that_was_never_validated_is_kept_only_where_there_is_no_other():
    done = History([{"step": 5, "validation": 9.0}], best_step=5, best_score=9.0)
    assert select([("a", History(interrupted=True)), ("b", done)], 2) == [("b", done)]
    alone = [("a", History(interrupted=True)), ("b", History(interrupted=True))]
    assert select(alone, 2) == alone[:1]


def test_too_little_data_is_refused():
    with pytest.raises(InputError, match="there is only 1"):
        recorded(noise_logs((20,)))
    with pytest.raises(InputError, match="every one has a single step"):
        recorded(noise_logs((1, 1, 1)))


# Saving and loading


@pytest.fixture
def saved(fitted, tmp_path) -> Path:
    fitted.save(tmp_path / "model")
    return tmp_path / "model"


def test_a_loaded_model_gives_the_same_estimates_to_the_bit(fitted, saved, imagined):
    loaded = load_model(saved)
    assert bits(loaded.worlds) == bits(fitted.worlds)
    assert bits(returns(loaded)) == bits(imagined)
    assert loaded.settings == fitted.settings
    assert loaded.histories == fitted.histories
    for name in ("horizon", "seed", "data", "seconds", "method", "notes"):
        assert getattr(loaded, name) == getattr(fitted, name), name
    np.testing.assert_array_equal(loaded.initial, fitted.initial)


def test_the_json_beside_the_weights_says_what_the_model_is(saved):
    content = json.loads((saved / "model.json").read_text())
    assert content == read_information(saved / MODEL_FILE)
    assert content["settings"] == {**asdict(SETTINGS), "head_units": [16], "g_units": [16]}
    assert content["shape"] == {"observations": 2, "actions": 1, "n_actions": None, "terminates": True}


def test_a_missing_directory_or_file_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere: there is no such directory"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"model\.safetensors: there is no such file"):
        load_model(tmp_path)


def test_a_truncated_model_is_refused(saved):
    content = (saved / MODEL_FILE).read_bytes()
    (saved / MODEL_FILE).write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"model\.safetensors: not a whole safetensors file"):
        load_model(saved)


def rewritten(fitted: WorldEvaluator, saved: Path, **settings: Any) -> None:
    path = saved / MODEL_FILE
    information = read_information(path)
    tree = load_tree(path, {"worlds": fitted.worlds, "initial": fitted.initial})
    changed = {"settings": {**information["settings"], **settings}, "references": None, "rewards": None}
    save_tree(path, tree, information={**information, **changed})


def test_a_model_of_another_version_is_refused_by_the_settings_it_has(fitted, saved):
    rewritten(fitted, saved, curiosity=1.0, age=3)
    with pytest.raises(InputError, match="another version of vlbm: unknown settings age, curiosity"):
        load_model(saved)


def test_weights_that_do_not_fit_the_settings_are_refused(fitted, saved):
    rewritten(fitted, saved, units=17)
    with pytest.raises(InputError, match=r"has shape .* the file belongs to other settings"):
        load_model(saved)


# Evaluating


def test_estimates_say_how_they_were_made(fitted):
    estimates = fitted.evaluate(POLICIES, episodes=20, horizon=5, discount=0.9, seed=4)
    assert [row.policy for row in estimates] == list(POLICIES)
    assert (estimates.method, estimates.seed, estimates.discount) == ("vlbm", 4, 0.9)
    assert estimates.settings == {
        **asdict(SETTINGS),
        "head_units": [16],
        "g_units": [16],
        "horizon": 5,
        "episodes": 20,
        "actions": "mean",
    }
    assert set(estimates.seconds) == {"fit", "evaluate"}
    assert all(len(row.returns) == 20 and 1 <= row.length <= 5 for row in estimates)
    imagined = fitted.imagine(0, POLICIES, Estimand(0.9, 5, "mean"), episodes=20, seed=4)
    for row in estimates:
        np.testing.assert_array_equal(row.returns, imagined[row.policy].returns(0.9))
        assert row.length == imagined[row.policy].length.mean()


def test_a_single_policy_may_come_without_a_name(fitted, imagined):
    estimates = fitted.evaluate(POLICIES["left"], episodes=20)
    assert [row.policy for row in estimates] == ["policy"]
    np.testing.assert_allclose(estimates[0].returns, imagined[0], rtol=1e-4, atol=1e-5)


def test_several_worlds_are_averaged_and_each_has_its_own_random_key(fitted, interrupted):
    pair = replace(fitted, worlds=(fitted.model, interrupted[0].model))
    row = pair.evaluate(POLICIES, episodes=20)[0]
    parts = [pair.imagine(index, POLICIES, ASKED, episodes=20)["left"].returns(0.995) for index in range(2)]
    np.testing.assert_array_equal(row.returns, np.concatenate(parts))
    assert row.value == pytest.approx(np.mean([part.mean() for part in parts]))
    twins = replace(fitted, worlds=(fitted.model, fitted.model))
    assert bits(twins.imagine(0, POLICIES, ASKED, episodes=20)["left"].reward) != bits(
        twins.imagine(1, POLICIES, ASKED, episodes=20)["left"].reward
    )


def test_episodes_start_from_logged_observations_none_twice_before_all_once(fitted):
    few = replace(fitted, initial=fitted.initial[:8])
    first = few.imagine(0, POLICIES, ASKED, episodes=20)["left"].initial_observations()
    _, counts = np.unique(first, axis=0, return_counts=True)
    assert sorted(counts) == [2] * 4 + [3] * 4
    assert {row.tobytes() for row in first} == {row.tobytes() for row in few.initial}


def test_the_same_worlds_can_be_imagined_otherwise(fitted):
    prior = fitted.with_settings(start="prior")
    first = prior.imagine(0, POLICIES, ASKED, episodes=20)["left"].initial_observations()
    assert not {row.tobytes() for row in first} & {row.tobytes() for row in fitted.initial}
    steady = fitted.with_settings(sampling="none")
    assert steady.settings.sampling == steady.model.imagination.sampling == "none"
    assert bits(steady.model) == bits(fitted.model)


def test_the_users_rule_of_termination_is_obeyed(fitted):
    row = fitted.evaluate(POLICIES, episodes=20, termination=lambda seen: np.ones(len(seen), bool))[0]
    assert row.length == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"discount": 0.0}, "discount 0.0: must be above 0"),
        ({"discount": 1.01}, "discount 1.01"),
        ({"horizon": 0}, "horizon 0: must be at least 1"),
        ({"horizon": 10**20}, "horizon 100000000000000000000: must be at most 1,000,000,000, or inf"),
        ({"episodes": 0}, "episodes 0: must be at least 1"),
    ],
)
def test_impossible_requests_are_refused(fitted, options, message):
    with pytest.raises(InputError, match=message):
        fitted.evaluate(POLICIES, **options)


def test_policies_that_do_not_fit_are_refused_by_name(fitted):
    with pytest.raises(InputError, match="no policies"):
        fitted.evaluate({})
    tall = FunctionPolicy(lambda seen: seen, observation_size=7)
    with pytest.raises(InputError, match="policy 'tall' wants 7 observations, the data have 2"):
        fitted.evaluate({"tall": tall})


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"branches": 0}, "branches=0: must be at least 1"),
        ({"keep": 0}, "keep=0: must be at least 1, or none to keep all models"),
        ({"emission": "difference", "start": "prior"}, "it needs start=encoder"),
        ({"g_units": ()}, "g_units: at least one hidden layer"),
        ({"window": 0}, "window=0: must be at least 1, or none"),
        ({"reencode_every": -1}, "reencode_every=-1"),
        ({"units": 1}, "pairwise RSA needs at least 2 units"),
        ({"head_units": ()}, "head_units"),
        ({"held_out": 1.0}, "held_out=1.0: must lie between 0 and 1"),
        ({"learning_rate": 0.0}, "learning_rate=0.0: must be positive"),
        ({"learning_rate": float("nan")}, "learning_rate=nan: must be positive"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        VLBM(**settings)


def test_models_without_and_with_endings_have_the_shape_of_their_data():
    for terminated in (False, True):
        world = SETTINGS.make_world(noise_logs((4, 3), terminated=[terminated] * 2), key=jax.random.key(0))
        shape = world.shape
        assert shape["terminates"] == terminated
        empty = SETTINGS.empty_world(shape)
        assert jax.tree.structure(empty) == jax.tree.structure(world)


def test_a_saved_folder_can_be_moved(saved, tmp_path, imagined):
    shutil.move(saved, tmp_path / "elsewhere")
    assert bits(returns(load_model(tmp_path / "elsewhere"))) == bits(imagined)
