"""Settings of the optimizer and of the loss scale."""

from __future__ import annotations

import pytest

from megads.config.optimizers import OPTIMIZERS
from megads.config.settings.optimizer import OptimConfig
from megads.errors import ConfigError
from tests.config.settings.given import given


def test_every_row_of_the_table_is_called_with_settings_of_this_section():
    optim = OptimConfig()
    for row in OPTIMIZERS.values():
        assert row.arguments(optim), row.name
        assert all(name.lower() in OptimConfig.model_fields for name in row.settings), row.name
    assert OPTIMIZERS["adamw"].arguments(optim) == {"betas": (0.9, 0.95), "eps": 1e-5, "fused": True}
    assert OPTIMIZERS["galoreadamw"].matrix_arguments(optim)["update_proj_gap"] == 200


def test_adam_of_megatron_is_adamw():
    assert given(("optim.optimizer",), {"--optimizer": "adam"}) == ("adamw",)
    assert given(("optim.optimizer",), OPT="adam") == ("adam",)
    with pytest.raises(ConfigError, match=r"'muonclip' is not one of .*; did you mean muon"):
        given((), OPT="muonclip")


@pytest.mark.parametrize(("word", "power"), [("4294967296", 32), ("65536.0", 16), ("1", 0)])
def test_a_loss_scale_is_a_power_of_two(word, power):
    assert given(("optim.initial_loss_scale_power",), {"--initial-loss-scale": word}) == (power,)


@pytest.mark.parametrize("word", ["3", "0", "0.5", "nan", "many"])
def test_a_loss_scale_that_is_none(word):
    with pytest.raises(ConfigError, match=f"--initial-loss-scale: '{word}' is not a"):
        given((), {"--initial-loss-scale": word})


def test_shares_are_below_one():
    with pytest.raises(ConfigError, match=r"env ADAM_BETA2: 1\.0 must be less than 1"):
        given((), ADAM_BETA2="1")
