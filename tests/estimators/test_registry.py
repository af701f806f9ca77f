"""Methods and settings by name."""

from __future__ import annotations

import pytest

from vlbm.errors import InputError
from vlbm.estimators.fqe import FQE
from vlbm.estimators.registry import METHODS, make_estimator, parse_settings
from vlbm.estimators.world_models.feedforward import FeedForward
from vlbm.estimators.world_models.presets import PRESETS
from vlbm.estimators.world_models.vlbm import VLBM


def test_the_default_is_the_model_as_it_comes():
    assert make_estimator() == VLBM()


ABLATIONS = ("vlm", "vlm-rsa", "vlm-rsa-mse", "vlm-rsa-ensemble")


def test_the_ablations_are_settings_of_one_model():
    assert VLBM().branches > 1
    kinds = {
        name: (made.branches, made.rsa, made.mixture_weight, made.ensemble)
        for name in (*ABLATIONS, "vlbm")
        for made in [make_estimator(name)]
    }
    assert kinds == {
        "vlm": (1, "none", 0.0, False),
        "vlm-rsa": (1, "pairwise", 0.0, False),
        "vlm-rsa-mse": (1, "mse", 0.0, False),
        "vlm-rsa-ensemble": (VLBM().branches, "pairwise", 0.0, True),
        "vlbm": (VLBM().branches, "pairwise", 1.0, False),
    }


def test_settings_win_over_ablations_and_ablations_over_presets():
    assert make_estimator("vlm", "paper").branches == 1
    assert make_estimator("vlm", "paper").latents == 16
    assert make_estimator("vlm", "paper", ["branches=4", "latents=8"]).branches == 4


@pytest.mark.parametrize("method", ABLATIONS)
def test_ablations_have_all_presets_and_are_driven_by_the_encoder_but_in_the_papers(method):
    for preset in PRESETS["vlbm"]:
        made = make_estimator(method, preset)
        assert (type(made), made.method) == (VLBM, method)
        assert (made.drive, made.emission) == ("own" if preset == "paper" else "encoder", "state")


def test_only_methods_have_presets():
    assert set(PRESETS) <= set(METHODS)
    assert make_estimator("ff", "quick") == FeedForward(steps=4000)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("branches=3", 3),
        ("learning_rate=1", 1.0),
        ("learning_rate=3e-4", 3e-4),
        ("window=none", None),
        ("window=None", None),
        ("window=20", 20),
        ("clip=none", None),
        ("clip=5", 5.0),
        ("ensemble=false", False),
        ("ensemble=True", True),
        ("head_units=64,32", (64, 32)),
        ("head_units=64", (64,)),
        ("head_units=(64, 32)", (64, 32)),
        ("rsa=mse", "mse"),
        ("rsa=none", "none"),
        ("drive=own", "own"),
        ("sampling=none", "none"),
    ],
)
def test_texts_become_settings_of_the_right_type(text, value):
    name = text.partition("=")[0]
    parsed = parse_settings(VLBM, [text])
    assert parsed == {name: value}
    assert type(parsed[name]) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("branches", "setting 'branches': expected key=value"),
        ("braches=3", "unknown setting 'braches'; did you mean 'branches'?"),
        ("zzz=3", "unknown setting 'zzz'; there are branches, latents"),
        ("branches=2.5", "setting branches=2.5: expected a whole number"),
        ("branches=true", "setting branches=true: expected a whole number"),
        ("learning_rate=fast", "setting learning_rate=fast: expected a number"),
        ("learning_rate=nan", "setting learning_rate=nan: expected a number"),
        ("learning_rate=1e999", "setting learning_rate=1e999: expected a number"),
        ("ensemble=1", "setting ensemble=1: expected true or false"),
        ("window=ten", "setting window=ten: expected a whole number or none"),
        ("rsa=cosine", "setting rsa=cosine: expected pairwise or mse or none"),
        ("head_units=64,a", "setting head_units=64,a: expected whole numbers separated by commas"),
    ],
)
def test_texts_that_are_no_settings_are_refused_with_what_was_expected(text, message):
    with pytest.raises(InputError) as caught:
        parse_settings(VLBM, [text])
    assert message in str(caught.value)


def test_settings_of_a_critic_are_reached_by_a_dot():
    made = make_estimator("wdr", settings=["critic.steps=2000", "folds=3", "critic.units=16,8"])
    assert (made.kind, made.folds) == ("wdr", 3)
    assert made.critic == FQE(steps=2000, units=(16, 8))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("critic.stps=3", "unknown setting 'critic.stps'; did you mean 'critic.steps'?"),
        ("critik.steps=3", "unknown setting 'critik.steps'; did you mean 'critic'?"),
        ("critic.zzz=3", "unknown setting 'critic.zzz'; there are units, "),
        ("critic.steps=2.5", "setting critic.steps=2.5: expected a whole number"),
        ("critic.steps", "setting 'critic.steps': expected key=value"),
        ("critic=fqe", "setting critic=fqe: it has settings of its own, such as critic.units=..."),
        ("folds.steps=3", "unknown setting 'folds.steps'"),
        ("critic.steps=0", "setting steps=0: must be at least 1"),
    ],
)
def test_settings_of_a_critic_are_refused_like_others(text, message):
    with pytest.raises(InputError) as caught:
        make_estimator("dr", settings=[text])
    assert message in str(caught.value)


def test_unknown_methods_and_presets_are_refused_with_those_there_are():
    with pytest.raises(InputError, match=r"unknown method 'vbm'; there are vlbm, vlm, .*wpdis"):
        make_estimator("vbm")
    for method, presets in (("vlbm", "default, quick, thorough, paper"), ("wpdis", "default")):
        with pytest.raises(InputError) as caught:
            make_estimator(method, preset="fast")
        assert str(caught.value) == f"method '{method}' has no preset 'fast'; there are {presets}"


def test_the_last_of_two_assignments_counts():
    assert parse_settings(VLBM, ["units=8", "units=9"]) == {"units": 9}
