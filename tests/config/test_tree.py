"""Settings by their dotted names."""

from __future__ import annotations

import pytest

from megads.config.schema import RunConfig
from megads.config.tree import env_name, fields, known_key, names_of, nested, read_value, value_of
from megads.errors import ConfigError


def test_every_setting_has_one_place_and_one_variable():
    assert list(fields())[:2] == ["preset", "defaults"]
    assert value_of(RunConfig(), "model.num_layers") == fields()["model.num_layers"].default
    assert len({env_name(name) for name in fields()}) == len(fields())
    assert names_of("model.num_layers") == ("NLAYERS", "NUM_LAYERS")


def test_nested_values_are_a_run():
    assert nested({"a.b": 1, "a.c": 2, "d": 3}) == {"a": {"b": 1, "c": 2}, "d": 3}
    assert RunConfig.model_validate(nested({"model.num_layers": 3, "name": "x"})).model.num_layers == 3


def test_a_value_is_read_with_its_place_in_front():
    assert read_value("train.train_iters", "1e3", "here") == 1000
    with pytest.raises(ConfigError, match=r"^here: 'x' is not an int$"):
        read_value("train.train_iters", "x", "here")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nlayers", "; did you mean model.num_layers?"),
        ("model.NUM_LAYERS", "; did you mean model.num_layers?"),
        ("num_layers", "; did you mean model.num_layers?"),
        ("train.train_itres", "; did you mean train.train_iters?"),
        ("zzz", "; `megads config` lists them"),
        (7, "; `megads config` lists them"),
    ],
)
def test_an_unknown_name_has_a_hint(name, hint):
    notes: list[str] = []
    assert known_key("model.num_layers", "here", notes) == "model.num_layers"
    with pytest.raises(ConfigError) as problem:
        known_key(name, "here", notes)
    assert notes == []
    assert str(problem.value) == f"here: no setting named {name!r}{hint}"
