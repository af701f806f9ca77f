"""Policies that are Python functions or objects."""

from __future__ import annotations

import importlib
import sys

import jax
import numpy as np
import pytest

from vlbm.errors import InputError
from vlbm.policies import FunctionPolicy, Policy, as_policy, has_log_prob, load_policy

SOURCE = """
import numpy as np

def act(observations):
    return observations[:, :2] * 2

class Agent:
    observation_size = 3
    action_size = 2

    def mean(self, observation):
        return observation[:, :2]

    def sample(self, observation, *, key):
        return observation[:, :2] + 1

class Holder:
    agent = Agent()

agent = Agent()
number = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module in the current folder, under a name no other test uses."""
    name = f"module_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    (tmp_path / f"{name}_broken.py").write_text("import numpy as np\n1 / 0\n")
    (tmp_path / f"{name}_lacking.py").write_text("import a_module_that_is_nowhere\n")
    monkeypatch.chdir(tmp_path)
    return name


def test_a_function_in_the_current_folder_acts(module, observation):
    policy = load_policy(f"{module}:act")
    assert isinstance(policy, Policy)
    assert policy.observation_size is None
    np.testing.assert_array_equal(policy.mean(observation), observation[:, :2] * 2)
    np.testing.assert_array_equal(policy.sample(observation, key=jax.random.key(0)), policy.mean(observation))


@pytest.mark.parametrize("name", ["agent", "Holder.agent"])
def test_an_object_with_mean_and_sample_is_a_policy_as_it_is(module, observation, name):
    policy = load_policy(f"{module}:{name}")
    assert policy.observation_size == 3
    np.testing.assert_array_equal(policy.sample(observation, key=jax.random.key(0)), observation[:, :2] + 1)


@pytest.mark.parametrize(
    ("specification", "message"),
    [
        ("{}:missing", "has no attribute 'missing'"),
        ("{}:number", "is a int; a policy is a function"),
        ("{}:Agent", "is the class Agent; give an instance"),
        ("{}_broken:act", "importing it failed with ZeroDivisionError"),
        ("{}_lacking:act", "no module 'a_module_that_is_nowhere'"),
        ("nowhere_at_all:act", "no module 'nowhere_at_all'"),
    ],
)
def test_what_cannot_be_imported_is_said(module, specification, message):
    with pytest.raises(InputError, match=message):
        load_policy(specification.format(module))


@pytest.mark.parametrize("file", ["choices_{}.py", "choices_{}/__init__.py", "choices_{}/inner.txt"])
def test_a_module_of_the_current_folder_replaces_one_of_a_former_folder(tmp_path, monkeypatch, file):
    """As a notebook that changes folders leaves it; a folder without code is a module, too."""
    name = f"choices_{tmp_path.name}"
    for folder, place, scale in (("first", file.format(tmp_path.name), 1), ("second", f"{name}.py", 2)):
        module = tmp_path / folder / place
        module.parent.mkdir(parents=True)
        module.write_text(f"count = 0\ndef act{scale}(seen):\n    return {scale} * seen\n")
    monkeypatch.chdir(tmp_path / "first")
    sys.path.insert(0, str(tmp_path / "first"))
    importlib.invalidate_caches()
    importlib.import_module(name)
    sys.path.remove(str(tmp_path / "first"))
    monkeypatch.chdir(tmp_path / "second")
    assert load_policy(f"{name}:act2").mean(np.ones((1, 1))) == 2
    sys.modules[name].count = 1
    load_policy(f"{name}:act2")
    assert sys.modules[name].count == 1, "a module of the same folder is imported again"


def test_a_module_on_the_path_is_not_replaced_by_one_of_the_folder(tmp_path, monkeypatch):
    (tmp_path / "vlbm").mkdir()
    (tmp_path / "vlbm" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    before = sys.modules["vlbm.policies"]
    load_policy("vlbm.policies:as_policy")
    assert sys.modules["vlbm.policies"] is before


def test_a_function_that_fails_is_named_with_its_line(tmp_path, monkeypatch, observation):
    name = f"failing_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("def act(seen):\n    return seen @ [[1.0]]\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match=rf"failed on observations of shape .* \(ValueError: .*{name}.py, line 2\)"
    ):
        load_policy(f"{name}:act").mean(observation)


def test_an_object_without_sizes_is_completed(observation):
    class Bare:
        def mean(self, observation):
            return observation[:, :1]

        def sample(self, observation, *, key):
            return observation[:, 1:2]

        def log_prob(self, observation, action):
            return np.zeros(len(observation))

    policy = as_policy(Bare())
    assert isinstance(policy, Policy)
    assert policy.observation_size is None
    assert has_log_prob(policy)
    assert not has_log_prob(FunctionPolicy(lambda rows: rows))
    np.testing.assert_array_equal(policy.sample(observation, key=jax.random.key(0)), observation[:, 1:2])


def test_a_policy_stays_itself(make_policy):
    policy = make_policy()
    assert as_policy(policy) is policy


def test_objects_from_outside_need_no_key_to_draw_by(observation):
    class Own:
        observation_size = None
        action_size = None

        def mean(self, observation):
            return observation[:, :1]

        def sample(self, observation):
            return observation[:, 1:2]

    policy = as_policy(Own())
    np.testing.assert_array_equal(policy.mean(observation), observation[:, :1])
    np.testing.assert_array_equal(policy.sample(observation, key=jax.random.key(0)), observation[:, 1:2])


def test_an_object_that_predicts_is_a_policy(observation):
    class Learnt:
        def predict(self, observation, state=None, deterministic=False):
            return (observation[:, :1] if deterministic else observation[:, 1:2]), state

    class Plain:
        def predict(self, rows):
            return rows[:, :1]

    policy = as_policy(Learnt())
    np.testing.assert_array_equal(policy.mean(observation), observation[:, :1])
    np.testing.assert_array_equal(policy.sample(observation, key=jax.random.key(0)), observation[:, 1:2])
    np.testing.assert_array_equal(as_policy(Plain()).mean(observation), observation[:, :1])


def test_what_cannot_act_is_refused_by_name():
    with pytest.raises(InputError, match="policy 'best' is a int; a policy is a function, or has mean"):
        as_policy(3, name="policy 'best'")
    with pytest.raises(InputError, match="give an instance"):
        as_policy(dict, name="policy")
