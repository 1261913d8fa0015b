"""Settings of recomputation and of DeepSpeed."""

from __future__ import annotations

import pytest

from megads.errors import ConfigError
from tests.config.settings.given import given

RECOMPUTE = ("recompute.granularity", "recompute.method", "recompute.engine", "recompute.partition_activations")


@pytest.mark.parametrize(
    ("flag", "values"),
    [
        ("--recompute-activations", ("selective", "uniform", "torch", False)),
        ("--checkpoint-activations", ("full", "uniform", "torch", False)),
        ("--distribute-saved-activations", ("none", "uniform", "deepspeed", True)),
    ],
)
def test_one_option_may_give_several_settings(flag, values):
    assert given(RECOMPUTE, {flag: ""}) == values


def test_a_switch_gives_a_choice():
    assert given(RECOMPUTE, DISTRIBUTE_SAVED_ACTIVATIONS="1") == ("none", "uniform", "deepspeed", True)
    assert given(("deepspeed.offload_optimizer",), CPU_OPTIMIZER="1") == ("cpu",)


def test_dtypes_have_the_names_of_other_toolkits():
    names = ("deepspeed.grad_accum_dtype", "deepspeed.communication_data_type")
    assert given(names, GRAD_ACCUM_DTYPE="torch.bfloat16", COMMUNICATION_DATA_TYPE="half") == ("bf16", "fp16")
    with pytest.raises(ConfigError, match="'fp8' is not one of fp32, bf16, fp16"):
        given(names, GRAD_ACCUM_DTYPE="fp8")


def test_counts_have_their_limits():
    with pytest.raises(ConfigError, match="env RECOMPUTE_NUM_LAYERS: 0 must be greater than 0"):
        given((), RECOMPUTE_NUM_LAYERS="0")
