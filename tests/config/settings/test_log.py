"""Settings of what a run reports."""

from __future__ import annotations

import pytest

from megads.config.settings.log import WANDB_ID
from megads.errors import ConfigError
from tests.config.settings.given import given


def test_levels_of_other_toolkits_are_ours():
    assert given(("log.log_level",), {"--log-level": "critical"}) == ("error",)
    with pytest.raises(ConfigError, match="--log-level: 'loud' is not one of debug, info, warning, error"):
        given((), {"--log-level": "loud"})


def test_an_option_that_is_misspelt_by_its_toolkit_has_both_spellings():
    name = ("track.log_learning_rate",)
    assert given(name) == (True,)
    assert given(name, {"--no-log-learnig-rate-to-tensorboard": ""}) == (False,)
    assert given(name, {"--no-log-learning-rate-to-tensorboard": ""}) == (False,)


def test_a_folder_of_codecarbon_asks_for_it():
    names = ("track.energy", "track.codecarbon_dir")
    assert given(names, {"--codecarbon-dir": "there"}) == (True, "there")
    assert given(names, CODECARBON_DIR="there") == (False, "there")


def test_waits_and_ratios_have_their_limits():
    with pytest.raises(ConfigError, match=r"env WANDB_INIT_TIMEOUT: 3601\.0 must be at most 3600"):
        given((), WANDB_INIT_TIMEOUT="3601")
    with pytest.raises(ConfigError, match=r"env STRAGGLER_RATIO: 1\.0 must be greater than 1"):
        given((), STRAGGLER_RATIO="1")


@pytest.mark.parametrize(("text", "fits"), [("a-b_1", True), ("", False), ("x" * 65, False), ("a/b", False)])
def test_what_a_run_may_be_known_by(text, fits):
    assert bool(WANDB_ID.fullmatch(text)) == fits
