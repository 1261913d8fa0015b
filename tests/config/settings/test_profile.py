"""Which steps and ranks are looked at."""

from __future__ import annotations

import pytest

from megads.config.derive import derive
from megads.config.settings.profile import profiled_ranks, profiled_steps
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError
from tests.config.advice import check


def _profile(ranks: int = 4, **env: str):
    asked = resolve("tiny", env={"TRAIN_ITERS": "10", **env}, machine="generic")
    run = derive(asked, num_hosts=1, ranks_per_host=ranks, vocab_size=500).run
    check(run, ranks)
    return run.profile


@pytest.mark.parametrize(
    ("env", "steps"),
    [
        ({}, range(0)),
        ({"PROFILE": "off"}, range(0)),
        ({"PROFILE": "0"}, range(0)),
        ({"PROFILE": "2-3"}, range(2, 4)),
        ({"PROFILE": "10 20"}, range(10, 21)),
        ({"PROFILE": " 7 - 7 "}, range(7, 8)),
        ({"PROFILE": "on"}, range(11, 13)),  # Megatron-LM's: from 10 done until 12 done
        ({"PROFILE": "on", "PROFILE_STEP_START": "0", "PROFILE_STEP_END": "3"}, range(1, 4)),
    ],
)
def test_steps(env, steps):
    assert profiled_steps(_profile(**env)) == steps


@pytest.mark.parametrize(
    ("text", "ranks"), [("0", {0}), ("0 3", {0, 3}), ("1,2", {1, 2}), ("0-2 3", {0, 1, 2, 3}), ("all", {0, 1, 2, 3})]
)
def test_ranks(text, ranks):
    assert profiled_ranks(_profile(PROFILE_RANKS=text), 4) == ranks


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"PROFILE": "soon"}, "PROFILE='soon' is not a range of steps; use FIRST-LAST, e.g. 2-3, or on"),
        ({"PROFILE": "1"}, "PROFILE='1' is not a range of steps"),
        ({"PROFILE": "3-2"}, "PROFILE='3-2': steps start at 1 or later"),
        ({"PROFILE": "0-2"}, "PROFILE='0-2': steps start at 1 or later"),
        ({"PROFILE": "on", "PROFILE_STEP_START": "5", "PROFILE_STEP_END": "5"}, "use PROFILE_STEP_END=6 or more"),
        ({"PROFILE_RANKS": "4"}, "PROFILE_RANKS='4': '4' is not a rank from 0 to 3"),
        ({"PROFILE_RANKS": "2-1"}, "'2-1' is not a rank"),
        ({"PROFILE_RANKS": " , "}, "PROFILE_RANKS is empty"),
    ],
)
def test_what_makes_no_sense_is_refused_before_launch(env, told):
    with pytest.raises(ConfigError) as caught:
        _profile(**env)
    assert told in str(caught.value)
