"""Settings of the learning rate and the weight decay over a run."""

from __future__ import annotations

import pytest

from megads.config.settings.schedule import AS_WEIGHT_DECAY
from megads.errors import ConfigError
from tests.config.settings.given import given

DECAYS = ("optim.start_weight_decay", "optim.end_weight_decay")


def test_styles_have_the_names_of_other_toolkits():
    names = ("optim.lr_decay_style", "optim.lr_cooldown_style")
    assert given(names, LR_DECAY_STYLE="infinite-inv-square-root") == ("infinite-inverse-square-root", "sqrt")
    assert given(names, {"--lr_constant_plus_cooldown": "", "--lr-wsd-decay-style": "minus_sqrt"}) == ("wsd", "sqrt")


def test_a_weight_decay_that_nobody_gives_follows():
    assert given(DECAYS) == (AS_WEIGHT_DECAY, AS_WEIGHT_DECAY)
    assert given(DECAYS, START_WEIGHT_DECAY="0") == (0.0, AS_WEIGHT_DECAY)
    with pytest.raises(ConfigError, match=r"env END_WEIGHT_DECAY: -2\.0 must be at least -1"):
        given((), END_WEIGHT_DECAY="-2")


@pytest.mark.parametrize("name", ["LR_WARMUP_FRAC", "COOLDOWN", "LR_CONSTANT_FRAC", "LR_FINDER_SMOOTHING"])
def test_fractions_are_below_one(name):
    with pytest.raises(ConfigError, match=f"env {name}: 1.0 must be less than 1"):
        given((), **{name: "1"})
