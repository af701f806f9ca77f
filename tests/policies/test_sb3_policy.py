"""Stable-Baselines3 models: our rebuilt network acts as the model itself does."""

from __future__ import annotations

import json
import zipfile

import jax
import numpy as np
import pytest

from vlbm.errors import InputError
from vlbm.policies import MLPPolicy, check_fit, has_log_prob, load_policy, save_policy

torch = pytest.importorskip("torch")
sb3 = pytest.importorskip("stable_baselines3")
gymnasium = pytest.importorskip("gymnasium")

SMALL = {"net_arch": [16, 16]}
OFF_POLICY = {"buffer_size": 10}


class Lopsided(gymnasium.Env):
    """Actions with different bounds on each side, and nothing else."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Box(np.array([-1.0, 0.1], np.float32), np.array([3.0, 0.7], np.float32))

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, True, False, {}


class MyPolicy(sb3.sac.policies.SACPolicy):
    pass


def make(algorithm, environment, *, kwargs=None, **settings):
    if algorithm in ("SAC", "TD3", "DDPG", "DQN"):
        settings = OFF_POLICY | settings
    return getattr(sb3, algorithm)(
        settings.pop("policy", "MlpPolicy"),
        environment,
        policy_kwargs=dict(SMALL if kwargs is None else kwargs),  # they write into it
        device="cpu",
        seed=0,
        **settings,
    )


def saved(model, path):
    model.save(path)
    return path


def rows(model, count=50):
    size = model.observation_space.shape[0]
    return np.random.default_rng(0).normal(size=(count, size), scale=3).astype(np.float32)


MODELS = {
    "SAC": ("SAC", "Pendulum-v1", None),
    "SAC with default layers": ("SAC", "Pendulum-v1", {}),
    "SAC without hidden layers": ("SAC", "Pendulum-v1", {"net_arch": []}),
    "SAC with tanh": ("SAC", Lopsided, SMALL | {"activation_fn": torch.nn.Tanh}),
    "TD3": ("TD3", "Pendulum-v1", None),
    "DDPG": ("DDPG", Lopsided, None),
    "PPO": ("PPO", "Pendulum-v1", None),
    "PPO with relu": ("PPO", Lopsided, SMALL | {"activation_fn": torch.nn.ReLU}),
    "PPO with elu": ("PPO", Lopsided, SMALL | {"activation_fn": torch.nn.ELU}),
    "A2C": ("A2C", Lopsided, {}),
    "discrete PPO": ("PPO", "CartPole-v1", None),
    "discrete A2C": ("A2C", "CartPole-v1", None),
    "DQN": ("DQN", "CartPole-v1", None),
}


@pytest.mark.parametrize(("algorithm", "environment", "kwargs"), MODELS.values(), ids=MODELS.keys())
def test_the_mean_is_the_models_own_prediction(tmp_path, algorithm, environment, kwargs):
    model = make(algorithm, environment() if isinstance(environment, type) else environment, kwargs=kwargs)
    with torch.no_grad():  # away from the tiny weights of an untrained head, so that clipping happens
        for name, parameter in model.policy.named_parameters():
            if name in ("action_net.weight", "log_std"):
                parameter.add_(torch.randn_like(parameter))
    policy = load_policy(saved(model, tmp_path / "model.zip"))
    assert isinstance(policy, MLPPolicy)
    observation = rows(model)
    expected, _ = model.predict(observation, deterministic=True)
    np.testing.assert_allclose(policy.mean(observation), expected, rtol=1e-5, atol=1e-5)
    discrete = isinstance(model.action_space, gymnasium.spaces.Discrete)
    size = int(model.action_space.n) if discrete else model.action_space.shape[0]
    check_fit({"x": policy}, observation_size=observation.shape[1], action_size=size, discrete=discrete)
    save_policy(policy, tmp_path / "again.safetensors")
    again = load_policy(tmp_path / "again.safetensors")
    np.testing.assert_array_equal(again.mean(observation), policy.mean(observation))


def test_ppo_has_the_models_density_and_samples_within_bounds(tmp_path):
    model = make("PPO", Lopsided())
    policy = load_policy(saved(model, tmp_path / "model.zip"))
    observation = rows(model)
    drawn = np.asarray(policy.sample(observation, key=jax.random.key(0)))
    assert (drawn >= model.action_space.low).all()
    assert (drawn <= model.action_space.high).all()
    with torch.no_grad():
        _, expected, _ = model.policy.evaluate_actions(torch.tensor(observation), torch.tensor(drawn))
    np.testing.assert_allclose(policy.log_prob(observation, drawn), expected, rtol=1e-4, atol=1e-5)


def test_discrete_ppo_has_the_models_probabilities(tmp_path):
    model = make("PPO", "CartPole-v1")
    policy = load_policy(saved(model, tmp_path / "model.zip"))
    observation = rows(model)
    drawn = np.asarray(policy.sample(observation, key=jax.random.key(0)))
    with torch.no_grad():
        _, expected, _ = model.policy.evaluate_actions(torch.tensor(observation), torch.tensor(drawn))
    np.testing.assert_allclose(policy.log_prob(observation, drawn), expected, rtol=1e-4, atol=1e-6)


def test_sac_has_the_models_density_in_the_units_of_the_action(tmp_path):
    model = make("SAC", Lopsided())
    policy = load_policy(saved(model, tmp_path / "model.zip"))
    observation = rows(model) / 3
    with torch.no_grad():
        squashed, log_prob = model.actor.action_log_prob(torch.tensor(observation))
    action = model.policy.unscale_action(squashed.numpy())
    scale = (model.action_space.high - model.action_space.low) / 2
    inside = np.abs(squashed.numpy()).max(-1) < 0.99  # their density is rounded near the boundary
    expected = log_prob.numpy() - np.log(scale).sum()
    ours = np.asarray(policy.log_prob(observation, action))
    assert inside.sum() > 20
    np.testing.assert_allclose(ours[inside], expected[inside], atol=2e-3)


def test_td3_is_deterministic_and_dqn_explores_as_the_model_would(tmp_path):
    td3 = load_policy(saved(make("TD3", "Pendulum-v1"), tmp_path / "td3.zip"))
    assert not has_log_prob(td3)
    model = make("DQN", "CartPole-v1")
    model.exploration_rate = 0.1
    dqn = load_policy(saved(model, tmp_path / "dqn.zip"))
    observation = rows(model)
    best = np.exp(dqn.log_prob(observation, dqn.mean(observation)))
    np.testing.assert_allclose(best, 0.95, rtol=1e-5)


UNSUPPORTED = {
    "gSDE": (lambda: make("SAC", "Pendulum-v1", use_sde=True), "explores with gSDE"),
    "own policy class": (lambda: make("SAC", "Pendulum-v1", policy=MyPolicy), "policy class comes from"),
    "own activation": (
        lambda: make("PPO", "Pendulum-v1", kwargs=SMALL | {"activation_fn": torch.nn.Softplus}),
        "its activation .*Softplus.* is not among",
    ),
    "activation with weights": (
        lambda: make("PPO", "Pendulum-v1", kwargs=SMALL | {"activation_fn": torch.nn.PReLU}),
        "(lacks|activation)",
    ),
    "several discrete actions": (lambda: make("PPO", WithSpaces(action="multi")), "its actions are .*Multi"),
    "dictionary of observations": (
        lambda: make("PPO", WithSpaces(observation="dict"), policy="MultiInputPolicy"),
        "its observations are .*Dict",
    ),
    "images": (
        lambda: make("PPO", WithSpaces(observation="image"), policy="CnnPolicy", kwargs={}),
        "images or has a feature extractor",
    ),
    "discrete observations": (lambda: make("PPO", WithSpaces(observation="id")), "its observations are"),
}


class WithSpaces(Lopsided):
    def __init__(self, *, observation=None, action=None):
        spaces = gymnasium.spaces
        box = Lopsided.observation_space
        self.observation_space = {
            None: box,
            "dict": spaces.Dict({"a": box}),
            "image": spaces.Box(0, 255, (36, 36, 3), np.uint8),
            "id": spaces.Discrete(4),
        }[observation]
        self.action_space = spaces.MultiDiscrete([2, 3]) if action == "multi" else Lopsided.action_space

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}


@pytest.mark.parametrize(("build", "message"), UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_what_is_not_supported_is_refused_with_what_is(tmp_path, build, message):
    path = saved(build(), tmp_path / "model.zip")
    with pytest.raises(InputError, match=f"model.zip: .*{message}.*; supported are 'MlpPolicy' models"):
        load_policy(path)


def test_the_pickles_inside_are_never_opened(tmp_path):
    """Each pickle in the file is replaced by one that would fail, and nothing changes."""
    model = make("SAC", "Pendulum-v1")
    whole, without = saved(model, tmp_path / "whole.zip"), tmp_path / "without.zip"
    with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(without, "w") as target:
        data = json.loads(archive.read("data"))
        for entry in data.values():
            if isinstance(entry, dict) and ":serialized:" in entry:
                entry[":serialized:"] = "bm90IGEgcGlja2xl"
        target.writestr("data", json.dumps(data))
        target.writestr("policy.pth", archive.read("policy.pth"))
    observation = rows(model)
    np.testing.assert_array_equal(
        load_policy(without).mean(observation), load_policy(whole).mean(observation)
    )


@pytest.mark.parametrize("member", ["data", "policy.pth"])
def test_a_damaged_model_is_refused(tmp_path, member):
    whole, damaged = saved(make("SAC", "Pendulum-v1"), tmp_path / "whole.zip"), tmp_path / "damaged.zip"
    with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(damaged, "w") as target:
        for name in ("data", "policy.pth"):
            target.writestr(name, b"nonsense" if name == member else archive.read(name))
    with pytest.raises(InputError, match=r"damaged.zip: not a readable Stable-Baselines3 model"):
        load_policy(damaged)
