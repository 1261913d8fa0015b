"""DeepSpeed's dictionary."""

from __future__ import annotations

import json

import pytest

from megads.config.deepspeed.dictionary import deepspeed_config, effective_zero_stage
from megads.config.deepspeed.keys import SETTING_OF, get
from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.config.tree import env_name


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
    run = _run({"DTYPE": dtype, "ZERO_STAGE": str(stage), "ENGINE": "deepspeed"})
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


EVERY_OFFLOAD = {"ZERO_STAGE": "3", "OFFLOAD_PARAMS": "nvme", "OFFLOAD_OPTIMIZER": "nvme", "NVME_PATH": "/nvme"}


@pytest.mark.parametrize("env", [{}, {"DTYPE": "fp16", "ZERO_STAGE": "0"}, {"DTYPE": "bf16"}, EVERY_OFFLOAD])
def test_deepspeed_knows_every_key(env):
    """DeepSpeed's own models refuse an unknown key and a wrong type."""
    from deepspeed.runtime import precision_config as precision
    from deepspeed.runtime.zero import config as zero

    config = deepspeed_config(_run(env), 4)
    assert zero.DeepSpeedZeroConfig(**config["zero_optimization"]).stage == config["zero_optimization"]["stage"]
    assert precision.DeepSpeedFP16Config(**config["fp16"]).min_loss_scale == 1
    assert precision.DeepSpeedBF16Config(**config["bf16"]).check_grad_overflow is True


CHANGED = {
    "COMMUNICATION_DATA_TYPE": ("communication_data_type", "bf16"),
    "GRAD_ACCUM_DTYPE": ("data_types.grad_accum_dtype", "bf16"),
    "CONTIGUOUS_GRADIENTS": ("zero_optimization.contiguous_gradients", False),
    "REDUCE_SCATTER": ("zero_optimization.reduce_scatter", False),
    "REDUCE_BUCKET_SIZE": ("zero_optimization.reduce_bucket_size", 90_000_000),
    "ALLGATHER_BUCKET_SIZE": ("zero_optimization.allgather_bucket_size", 7000),
    "SUB_GROUP_SIZE": ("zero_optimization.sub_group_size", 7000),
    "ZERO_HPZ_PARTITION_SIZE": ("zero_optimization.zero_hpz_partition_size", 2),
    "STAGE3_PREFETCH_BUCKET_SIZE": ("zero_optimization.stage3_prefetch_bucket_size", 7000),
    "STAGE3_PARAM_PERSISTENCE_THRESHOLD": ("zero_optimization.stage3_param_persistence_threshold", 7000),
    "STAGE3_MAX_LIVE_PARAMETERS": ("zero_optimization.stage3_max_live_parameters", 3_000_000_000),
    "STAGE3_MAX_REUSE_DISTANCE": ("zero_optimization.stage3_max_reuse_distance", 3_000_000_000),
    "OFFLOAD_PIN_MEMORY": ("zero_optimization.offload_param.pin_memory", False),
    "OFFLOAD_BUFFER_COUNT": ("zero_optimization.offload_optimizer.buffer_count", 5),
    "OFFLOAD_PIPELINE_READ": ("zero_optimization.offload_optimizer.pipeline_read", True),
    "OFFLOAD_PIPELINE_WRITE": ("zero_optimization.offload_optimizer.pipeline_write", True),
    "NVME_PATH": ("zero_optimization.offload_optimizer.nvme_path", "/elsewhere"),
    "ZERO_ALLOW_UNTESTED_OPTIMIZER": ("zero_allow_untested_optimizer", False),
    "ZERO_FORCE_DS_CPU_OPTIMIZER": ("zero_force_ds_cpu_optimizer", True),
    "STEPS_PER_PRINT": ("steps_per_print", 10),
    "WALL_CLOCK_BREAKDOWN": ("wall_clock_breakdown", True),
    "COMMS_LOGGER": ("comms_logger.enabled", True),
    "COMMS_LOGGER_VERBOSE": ("comms_logger.verbose", True),
    "COMMS_LOGGER_PROF_ALL": ("comms_logger.prof_all", False),
    "COMMS_LOGGER_DEBUG": ("comms_logger.debug", True),
    "DDP_IMPL": ("zero_optimization.overlap_comm", True),
}


@pytest.mark.parametrize("name", CHANGED)
def test_every_key_is_a_setting(name):
    key, value = CHANGED[name]
    # Under ZeRO 3 it changes nothing on accelerators.
    base = {"DTYPE": "bf16"} if name == "DDP_IMPL" else {**EVERY_OFFLOAD, "DTYPE": "bf16"}
    if name.startswith("COMMS_LOGGER_"):
        base["COMMS_LOGGER"] = "1"
    assert get(deepspeed_config(_run(base), 4), key) != value
    given = "torch" if name == "DDP_IMPL" else str(value)
    assert get(deepspeed_config(_run({**base, name: given}), 4), key) == value


def test_the_table_of_settings_is_whole():
    beside = {"OFFLOAD_OPTIMIZER", "OFFLOAD_PARAMS"}
    assert {env_name(name) for name in SETTING_OF.values()} == {*CHANGED, *beside} - {"DDP_IMPL"}


def test_offload_stands_only_where_it_works():
    zero = deepspeed_config(_run({"CPU_OPTIMIZER": "1"}), 4)["zero_optimization"]
    assert zero["offload_optimizer"]["device"] == "cpu"
    assert "offload_param" not in zero
    assert "offload_optimizer" not in deepspeed_config(_run({}), 4)["zero_optimization"]


# DS_CONFIG_OVERRIDES


@pytest.mark.parametrize(
    ("machine", "stage", "ddp", "expected"),
    [
        ("polaris", 3, "local", True),
        ("aurora", 3, "local", True),
        ("generic", 3, "local", True),
        ("cpu", 3, "local", False),
        ("cpu", 3, "torch", True),
        ("polaris", 2, "local", False),
        ("polaris", 2, "torch", True),
    ],
)
def test_zero_3_overlaps_on_accelerators(machine, stage, ddp, expected):
    resolved = resolve("tiny", env={"ZERO_STAGE": str(stage), "DDP_IMPL": ddp}, machine=machine)
    run = derive(resolved, num_hosts=1, ranks_per_host=2, vocab_size=100).run
    assert deepspeed_config(run, 2)["zero_optimization"]["overlap_comm"] is expected


def test_who_does_not_want_zero_3_to_overlap_says_so():
    env = {"ZERO_STAGE": "3", "DS_CONFIG_OVERRIDES": '{"zero_optimization": {"overlap_comm": false}}'}
    resolved = resolve("tiny", env=env, machine="polaris")
    run = derive(resolved, num_hosts=1, ranks_per_host=2, vocab_size=100).run
    assert deepspeed_config(run, 2)["zero_optimization"]["overlap_comm"] is False


def test_a_log_of_collectives_that_nobody_wants_has_no_section():
    """DeepSpeed switches it on wherever the section is, and then waits for the device behind every collective."""
    assert "comms_logger" not in deepspeed_config(_run({}), 4)
    assert "comms_logger" not in deepspeed_config(_run({"COMMS_LOGGER_VERBOSE": "1"}), 4)
    ops = '{"comms_logger": {"prof_ops": ["all_reduce"]}}'
    assert "comms_logger" not in deepspeed_config(_run({"DS_CONFIG_OVERRIDES": ops}), 4)
    assert deepspeed_config(_run({"COMMS_LOGGER": "1"}), 4)["comms_logger"]["enabled"] is True


def test_deepspeed_takes_the_section_for_the_switch():
    """Once it no longer does, the section may stay."""
    from deepspeed.comm.config import DeepSpeedCommsConfig

    assert DeepSpeedCommsConfig({"comms_logger": {"enabled": False}}).comms_logger_enabled
    assert not DeepSpeedCommsConfig({}).comms_logger_enabled
