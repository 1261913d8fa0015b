"""Trackers are chosen, and their libraries asked for, before a rank starts."""

from __future__ import annotations

from typing import Any

import pytest

from megads.config.sources.resolve import resolve
from megads.errors import ConfigError, DependencyError
from megads.launch.preflight.tracker_packages import choose_trackers


def chosen(env: dict[str, str], flags: Any = (), missing: tuple[str, ...] = ()) -> Any:
    resolved = resolve("7B", env=env, flags=flags, machine="generic")
    return choose_trackers(resolved, env, lambda package: package not in missing)


@pytest.mark.parametrize(
    ("env", "mode", "origin"),
    [
        ({}, "disabled", "derived no WANDB_PROJECT, no WANDB_API_KEY"),
        ({"WANDB_API_KEY": "k"}, "online", "derived WANDB_API_KEY"),
        ({"WANDB_PROJECT": "p"}, "online", "derived WANDB_PROJECT"),
        ({"WB_PROJECT": "p"}, "online", "derived WANDB_PROJECT"),
        ({"WANDB_API_KEY": "k", "WANDB_DISABLED": "1"}, "disabled", "env WANDB_DISABLED"),
        ({"WANDB_API_KEY": "k", "WANDB_DISABLED": "true", "WANDB_PROJECT": "p"}, "disabled", "env WANDB_DISABLED"),
        ({"WANDB_DISABLED": "false", "WANDB_PROJECT": "p"}, "online", "derived WANDB_PROJECT"),
        ({"WANDB_MODE": "offline"}, "offline", "env WANDB_MODE"),
        ({"WANDB_MODE": "disabled", "WANDB_API_KEY": "k"}, "disabled", "env WANDB_MODE"),
    ],
)
def test_weights_and_biases_is_on_when_something_asks_for_it(env, mode, origin):
    found = chosen(env)
    assert found.run.track.wandb_mode == mode
    assert str(found.origins["track.wandb_mode"]) == origin


@pytest.mark.parametrize(
    ("env", "flags", "value"),
    [
        ({}, (), "off"),
        ({"TENSORBOARD": "1"}, (), "on"),
        ({"TENSORBOARD_DIR": "there"}, (), "on"),
        ({}, (("--tensorboard-dir", "there"),), "on"),
        ({"NO_TENSORBOARD": "1"}, (("--tensorboard-dir", "there"),), "off"),
    ],
)
def test_tensorboard_is_on_when_something_asks_for_it(env, flags, value):
    assert chosen(env, flags).run.track.tensorboard == value


def test_a_folder_for_energy_asks_for_it():
    assert chosen({"CODECARBON_DIR": "there"}).run.track.energy
    assert not chosen({}).run.track.energy


@pytest.mark.parametrize(
    ("env", "flags", "told"),
    [
        ({"TENSORBOARD": "on"}, (), "env TENSORBOARD needs the package tensorboard: pip install tensorboard, or set "),
        ({}, (("--tensorboard-dir", "d"),), "cli --tensorboard-dir needs the package tensorboard: pip install"),
        ({"WANDB_MODE": "offline"}, (), "env WANDB_MODE needs the package wandb: pip install wandb, or set WANDB_DIS"),
        ({"WANDB_PROJECT": "p"}, (), "env WANDB_PROJECT needs the package wandb: pip install wandb"),
        ({"ENERGY": "1"}, (), "env ENERGY needs the package codecarbon: pip install codecarbon, or set neither"),
        ({"CODECARBON_DIR": "d"}, (), "env CODECARBON_DIR needs the package codecarbon: pip install codecarbon"),
    ],
)
def test_a_library_that_is_asked_for_and_missing_is_one_line(env, flags, told):
    with pytest.raises(DependencyError) as caught:
        chosen(env, flags, missing=("tensorboard", "wandb", "codecarbon"))
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("name", ["a/b", "é", "x" * 65, "two words"])
def test_an_id_that_a_run_there_can_not_have_is_refused(name):
    with pytest.raises(ConfigError) as caught:
        chosen({"WANDB_RUN_ID": name, "WANDB_MODE": "offline"})
    told = f"WANDB_RUN_ID={name} (env WANDB_RUN_ID) must be at most 64 letters, digits, - and _"
    assert str(caught.value) == told
    assert chosen({"WANDB_RUN_ID": name}).run.track.wandb_mode == "disabled"
    assert chosen({"WANDB_RUN_ID": "my-run_2", "WANDB_MODE": "offline"}).run.track.wandb_id == "my-run_2"


def test_a_key_without_the_library_is_a_note():
    found = chosen({"WANDB_API_KEY": "very secret"}, missing=("wandb",))
    assert found.run.track.wandb_mode == "disabled"
    (note,) = found.notes
    assert note.startswith("WANDB_API_KEY is set, but wandb is not installed")
    assert chosen({}, missing=("tensorboard", "wandb", "codecarbon")).notes == ()
