"""What `import vlbm` offers."""

from __future__ import annotations

from dataclasses import is_dataclass

import pytest

import vlbm
from vlbm.estimators.registry import METHODS, make_estimator


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_a_documented_class_of_the_package(method):
    kind = type(make_estimator(method))
    assert getattr(vlbm, kind.__name__) is kind
    assert is_dataclass(kind)
    assert "(" not in kind.__doc__.splitlines()[0].split()[0]  # not what dataclasses write by themselves


def test_classes_have_the_defaults_of_their_methods():
    made = {"wis": vlbm.WIS(), "dr": vlbm.DoublyRobust(), "wdr": vlbm.WeightedDoublyRobust()}
    made |= {"dualdice": vlbm.DualDICE(), "gendice": vlbm.GenDICE(), "vlbm": vlbm.VLBM()}
    for method, settings in made.items():
        assert settings == make_estimator(method)
        assert settings.method == method


def test_every_name_that_is_listed_can_be_had_and_others_cannot():
    for name in dir(vlbm):
        assert getattr(vlbm, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = vlbm.nothing
