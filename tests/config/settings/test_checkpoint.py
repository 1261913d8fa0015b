"""Settings of checkpoints."""

from __future__ import annotations

import pytest

from megads.errors import ConfigError
from tests.config.settings.given import given

SAVES = ("checkpoint.save_optim", "checkpoint.load_optim")


def test_negative_switches_turn_off_what_is_on():
    assert given(SAVES) == (True, True)
    assert given(SAVES, NO_SAVE_OPTIM="1") == (False, True)
    assert given(SAVES, NO_SAVE_OPTIM="0", LOAD_OPTIM="0") == (True, False)
    assert given(SAVES, {"--no-load-optim": ""}) == (True, False)
    with pytest.raises(ConfigError, match="SAVE_OPTIM=1 and NO_SAVE_OPTIM=1 contradict each other"):
        given(SAVES, SAVE_OPTIM="1", NO_SAVE_OPTIM="1")


def test_the_schedule_of_a_resumed_run_has_both_toolkits_options():
    name = ("checkpoint.schedule",)
    assert given(name, {"--use-checkpoint-lr-scheduler": ""}) == ("keep",)
    assert given(name, {"--override-opt_param-scheduler": ""}) == given(name) == ("override",)
    with pytest.raises(ConfigError, match=r"give checkpoint.schedule two values"):
        given(name, {"--override-lr-scheduler": "", "--use-checkpoint-lr-scheduler": ""})


def test_intervals_have_other_names_and_are_not_negative():
    assert given(("checkpoint.dir", "checkpoint.keep"), SAVE="here", KEEP_LAST="3") == ("here", 3)
    with pytest.raises(ConfigError, match="env SAVE_INTERVAL: -1 must be at least 0"):
        given((), SAVE_INTERVAL="-1")
