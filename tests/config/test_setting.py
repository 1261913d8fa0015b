"""The declaration of a setting."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from megads.config.setting import LARGEST, Origin, Section, Weak, Word, minutes, setting, takes_word


class Example(Section):
    steps: int = setting(3, "STEPS ITERS --steps --iters", "steps of it", unit="steps", ge=0)
    is_on: bool = setting(True, "IS_ON --on --no-on", "whether", flags={"--quiet": False})
    kind: str = setting("a", "KIND", "which", flags={"--b": "b", "--kind": Word({"c": "b"})})


def extra(name: str) -> dict:
    return Example.model_fields[name].json_schema_extra


def test_names_are_a_variable_other_variables_and_options():
    assert (extra("steps")["env"], extra("steps")["aliases"]) == ("STEPS", ("ITERS",))
    assert extra("steps")["flags"] == {"--steps": None, "--iters": None}
    assert extra("is_on")["flags"] == {"--on": True, "--no-on": False, "--quiet": False}
    assert extra("kind")["flags"] == {"--b": "b", "--kind": Word({"c": "b"})}


def test_a_section_is_frozen_and_knows_its_limits():
    assert Example(steps=LARGEST).steps == LARGEST
    for wrong in ({"steps": -1}, {"steps": LARGEST + 1}, {"more": 1}):
        with pytest.raises(ValidationError):
            Example(**wrong)
    with pytest.raises(ValidationError):
        Example().steps = 4


def test_a_word_is_named_or_converted():
    assert Word({"adam": "adamw"}).text("adam") == "adamw"
    assert Word({"adam": "adamw"}).text("sgd") == "sgd"
    assert Word(convert=minutes).text("1.5") == "90.0"
    for word in ("soon", "inf", "nan"):
        with pytest.raises(ValueError, match="is not a number"):
            minutes(word)
    assert takes_word(None)
    assert takes_word(Word())
    assert not takes_word(Weak(1))
    assert str(Origin("env", "LR")) == "env LR"
    assert str(Origin("default")) == "default"
