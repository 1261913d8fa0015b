"""DeepSpeed's dictionary."""

from __future__ import annotations

import json

import pytest

from megads.config.deepspeed import deepspeed_config, effective_zero_stage
from megads.config.derive import derive
from megads.config.resolve import resolve
from megads.config.schema import RunConfig


def _run(env: dict[str, str], ranks: int = 4) -> RunConfig:
    resolved = resolve("tiny", env=env, machine="generic")
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=500).run


def test_batches_and_clipping_are_the_runs():
    env = {"TP": "2", "MICRO_BATCH": "3", "GRAD_ACC_STEPS": "5", "CLIP_GRAD": "0.3"}
    config = deepspeed_config(_run(env), 4)
    assert config["train_micro_batch_size_per_gpu"] == 3
    assert config["gradient_accumulation_steps"] == 5
    assert config["train_batch_size"] == 3 * 5 * 2
    assert config["gradient_clipping"] == 0.3
    assert config["steps_per_print"] is None


def test_no_clipping_is_written_as_zero():
    assert deepspeed_config(_run({"CLIP_GRAD": "0"}), 4)["gradient_clipping"] == 0.0


@pytest.mark.parametrize(
    ("dtype", "stage", "effective"),
    [("fp32", 0, 0), ("fp32", 1, 1), ("bf16", 0, 1), ("bf16", 1, 1), ("fp16", 0, 1), ("fp16", 1, 1)],
)
def test_half_precision_never_runs_zero_0(dtype, stage, effective):
    run = _run({"DTYPE": dtype, "ZERO_STAGE": str(stage)})
    config = deepspeed_config(run, 4)
    assert effective_zero_stage(run) == config["zero_optimization"]["stage"] == effective
    assert config["bf16"]["enabled"] == (dtype == "bf16")
    assert config["fp16"]["enabled"] == (dtype == "fp16")
    assert config["bf16"]["check_grad_overflow"] is True
    assert (config.get("data_types") == {"grad_accum_dtype": "fp32"}) == (dtype != "fp32")


def test_loss_scale_numbers():
    env = {"DTYPE": "fp16", "INITIAL_LOSS_SCALE_POWER": "12", "LOSS_SCALE_WINDOW": "7", "LOSS_SCALE_HYSTERESIS": "3"}
    fp16 = deepspeed_config(_run(env), 4)["fp16"]
    numbers = (fp16["loss_scale"], fp16["initial_scale_power"], fp16["loss_scale_window"], fp16["hysteresis"])
    assert numbers == (0, 12, 7, 3)
    assert fp16["min_loss_scale"] == 1


def test_it_is_json():
    config = deepspeed_config(_run({}), 4)
    assert json.loads(json.dumps(config)) == config


@pytest.mark.parametrize("env", [{}, {"DTYPE": "fp16", "ZERO_STAGE": "0"}, {"DTYPE": "bf16"}])
def test_deepspeed_knows_every_key(env):
    """DeepSpeed's own models refuse an unknown key and a wrong type."""
    from deepspeed.runtime import precision_config as precision
    from deepspeed.runtime.zero import config as zero

    config = deepspeed_config(_run(env), 4)
    assert zero.DeepSpeedZeroConfig(**config["zero_optimization"]).stage == config["zero_optimization"]["stage"]
    assert precision.DeepSpeedFP16Config(**config["fp16"]).min_loss_scale == 1
    assert precision.DeepSpeedBF16Config(**config["bf16"]).check_grad_overflow is True
