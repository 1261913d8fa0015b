"""The settings put together: seeds, launchers, and defaults that go with an optimizer."""

from __future__ import annotations

import pytest

from megads.config.optimizers import OPTIMIZERS
from megads.config.schema import OPTIMIZER_DEFAULTS, RunConfig, TrainConfig
from megads.config.setting import Section
from megads.errors import ConfigError
from tests.config.settings.given import given


def test_a_seed_of_one_thing_leaves_the_others():
    train = TrainConfig(seed=5, data_seed=7)
    assert (train.seed_of_weights, train.seed_of_data, train.seed_of_dropout) == (5, 7, 5)


def test_a_launcher_that_is_none_names_one():
    assert given(("launch.launch_with",), LAUNCH_WITH="ompi") == ("openmpi",)
    with pytest.raises(ConfigError, match=r"'mpirun' is not one of .*; use openmpi, mpich or pals"):
        given((), LAUNCH_WITH="mpirun")


def test_minutes_are_seconds_here():
    assert given(("launch.timeout_s",), {"--distributed-timeout-minutes": "1.5"}) == (90.0,)


def test_an_average_takes_the_place_of_a_decay():
    assert set(OPTIMIZER_DEFAULTS) == {name for name, row in OPTIMIZERS.items() if row.is_averaged}
    assert given(("optim.lr_decay_style",), OPT="sgdschedulefree") == ("constant",)


def test_sections_are_made_from_defaults():
    run = RunConfig()
    assert sum(isinstance(getattr(run, name), Section) for name in RunConfig.model_fields) == 18
