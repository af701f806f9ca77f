"""Minari data sets, written by Minari itself."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest

from vlbm.data.readers import is_data, load
from vlbm.errors import InputError

minari = pytest.importorskip("minari")
gymnasium = pytest.importorskip("gymnasium")

from gymnasium import spaces  # noqa: E402
from minari.data_collector import EpisodeBuffer  # noqa: E402

BOX = spaces.Box(-np.inf, np.inf, (2,))
FORMATS = pytest.mark.parametrize("data_format", ["hdf5", "parquet", "arrow"])


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


def create(buffers, *, name="walk/test-v0", observation_space=BOX, action_space=BOX, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari misses an author and an address.
        minari.create_dataset_from_buffers(
            name, buffers, observation_space=observation_space, action_space=action_space, **options
        )
    return name


def buffer(steps, *, terminated, observations=None, actions=None, rewards=None):
    end = np.arange(steps) == steps - 1
    rng = np.random.default_rng(steps)
    return EpisodeBuffer(
        observations=rng.normal(size=(steps + 1, 2)).astype(np.float32)
        if observations is None
        else observations,
        actions=rng.normal(size=(steps, 2)).astype(np.float32) if actions is None else actions,
        rewards=list(range(steps)) if rewards is None else rewards,
        terminations=list(end & terminated),
        truncations=list(end & (not terminated)),
        infos={},
    )


@FORMATS
def test_a_data_set_gives_its_episodes(data_format, logged, root, assert_same):
    first = logged.first_observation
    buffers = [
        EpisodeBuffer(
            observations=logged.observation[first[i] : first[i] + length + 1],
            actions=logged.action[logged.episode_of_step == i],
            rewards=list(logged.reward[logged.episode_of_step == i]),
            terminations=[False] * (length - 1) + [bool(logged.terminated[i])],
            truncations=[False] * (length - 1) + [not logged.terminated[i]],
            infos={},
        )
        for i, length in enumerate(logged.length)
    ]
    space = spaces.Box(-np.inf, np.inf, (3,))
    name = create(buffers, action_space=space, data_format=data_format)
    expected = logged.__class__(**(vars(logged) | {"log_prob": None}))
    places = [f"minari:{name}", name, root / name, root / name / "data"]
    if data_format == "hdf5":
        places.append(root / name / "data" / "main_data.hdf5")
    for place in places:
        assert is_data(place)
        assert_same(load(place), expected)


def test_a_real_environment_can_be_read_back(root):
    environment = minari.DataCollector(gymnasium.make("CartPole-v1"))
    rewards = []
    for seed in range(3):
        environment.reset(seed=seed)
        environment.action_space.seed(seed)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = environment.step(environment.action_space.sample())
            total, over = total + float(reward), terminated or truncated
        rewards.append(total)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        environment.create_dataset("cartpole/random-v0")
    environment.close()
    episodes = load("minari:cartpole/random-v0")
    assert episodes.n_actions == 2
    assert episodes.observation_size == 4
    assert episodes.returns().tolist() == rewards
    assert episodes.terminated.all()


@FORMATS
def test_dictionaries_join_their_parts_in_order(data_format):
    space = spaces.Dict(
        {"goal": spaces.Box(-1, 1, (1,)), "arm": spaces.Box(-1, 1, (2, 2)), "mode": spaces.Discrete(3)}
    )
    observations = {
        "goal": np.array([[0.5], [0.25]], np.float32),
        "arm": np.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], np.float32),
        "mode": np.array([0, 2]),
    }
    data = buffer(1, terminated=True, observations=observations)
    create([data], observation_space=space, data_format=data_format)
    episodes = load("minari:walk/test-v0")
    order = list(space)
    parts = {"goal": [0.5], "arm": [1, 2, 3, 4], "mode": [1, 0, 0]}
    assert episodes.observation[0].tolist() == [number for name in order for number in parts[name]]
    names = {
        "goal": ["goal"],
        "arm": [f"arm[{index}]" for index in range(4)],
        "mode": [f"mode[{index}]" for index in range(3)],
    }
    assert episodes.observation_names == tuple(one for name in order for one in names[name])
    assert episodes.notes == (f"observations join the parts {', '.join(order)} in this order",)


@FORMATS
def test_tuples_and_many_choices_become_one_vector(data_format):
    space = spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)))
    observations = (np.array([[1, 0], [0, 2]]), np.array([[0, 1], [1, 1]], np.int8))
    data = buffer(1, terminated=True, observations=observations)
    create([data], observation_space=space, data_format=data_format)
    assert load("minari:walk/test-v0").observation.tolist() == [[0, 1, 1, 0, 0, 0, 1], [1, 0, 0, 0, 1, 1, 1]]


@FORMATS
def test_small_images_are_unpacked(data_format):
    space = spaces.Box(0, 255, (32, 40), np.uint8)
    images = np.full((3, 32, 40), 200, np.uint8)
    images[1] = 100
    create(
        [buffer(2, terminated=True, observations=images)], observation_space=space, data_format=data_format
    )
    assert load("minari:walk/test-v0").observation.tolist() == images.reshape(3, -1).tolist()


@FORMATS
def test_discrete_actions_count_from_zero(data_format):
    create(
        [buffer(3, terminated=False, actions=np.array([5, 6, 7]))],
        action_space=spaces.Discrete(4, start=5),
        data_format=data_format,
    )
    episodes = load("minari:walk/test-v0")
    assert episodes.n_actions == 4
    assert episodes.action.tolist() == [0, 1, 2]
    assert episodes.notes == ("action ids count from 0 here, from 5 in the data set",)


@pytest.mark.parametrize(
    ("options", "episode", "message"),
    [
        (
            {"action_space": spaces.MultiBinary(2)},
            {"actions": np.ones((1, 2), np.int8)},
            "action space MultiBinary",
        ),
        (
            {"observation_space": spaces.Text(5)},
            {"observations": ["a", "b"]},
            "observation space Text.* cannot be laid out",
        ),
        (
            {"observation_space": spaces.Box(0, 1, (70, 70))},
            {"observations": np.zeros((2, 70, 70), np.float32)},
            "has 4900 numbers, more than 4096",
        ),
        ({}, {"rewards": [np.nan]}, "field 'rewards of episode 0' holds nan in row 0"),
        ({}, {"observations": np.zeros((1, 2))}, "episode 0 has 1 observations, 1 actions and 1 rewards"),
    ],
)
def test_a_data_set_that_cannot_be_used_says_why(options, episode, message):
    create([buffer(1, terminated=True, **episode)], **options)
    with pytest.raises(InputError, match=message):
        load("minari:walk/test-v0")


def test_choices_does_not_make_vectors_discrete():
    create([buffer(1, terminated=True)])
    with pytest.raises(InputError, match="n_actions=3, but the action space Box"):
        load("minari:walk/test-v0", n_actions=3)


def test_a_data_set_that_is_not_here_says_how_to_fetch_it():
    with pytest.raises(InputError, match="fetch it with: minari download mujoco/hopper/expert-v0"):
        load("minari:mujoco/hopper/expert-v0")


def test_download_fetches_what_is_not_here(monkeypatch):
    monkeypatch.setattr(
        minari, "download_dataset", lambda name: create([buffer(2, terminated=True)], name=name)
    )
    assert load("minari:far/away-v0", download=True).steps == 2


def test_a_torn_data_set_is_refused(root):
    create([buffer(5, terminated=True)])
    path = root / "walk/test-v0/data/main_data.hdf5"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match="cannot be read as a Minari data set"):
        load(root / "walk/test-v0")


def test_without_minari_the_extra_to_install_is_named(monkeypatch, root):
    create([buffer(1, terminated=True)])
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(InputError, match=r"pip install 'vlbm\[minari\]'"):
        load("minari:walk/test-v0")
