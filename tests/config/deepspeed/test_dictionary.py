"""DeepSpeed's dictionary."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from megads.config.deepspeed.dictionary import SETTING_OF, deepspeed_config, effective_zero_stage
from megads.config.deepspeed.overrides import FOLLOWS, KEYS_OF, OURS, TOP_LEVEL, adopt, get
from megads.config.derive import derive
from megads.config.run_folder import load_config, save_config
from megads.config.schema import RunConfig
from megads.config.sources.resolve import Resolved, resolve
from megads.config.tree import env_name
from megads.errors import ConfigError


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
    base = {**EVERY_OFFLOAD, "DTYPE": "bf16"}
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


def _adopted(content: Any, path: Path, env: dict[str, str] | None = None) -> Resolved:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    given = {"DTYPE": "bf16", **(env or {}), "DS_CONFIG_OVERRIDES": str(path)}
    resolved = derive(resolve("tiny", env=given, machine="generic"), num_hosts=1, ranks_per_host=4, vocab_size=500)
    return adopt(resolved, SETTING_OF)


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "mine.json"


def test_keys_without_a_setting_are_merged(file):
    content = {"zero_optimization": {"round_robin_gradients": True}, "tensorboard": {"enabled": False}}
    config = deepspeed_config(_adopted(content, file).run, 4)
    assert config["zero_optimization"]["round_robin_gradients"] is True
    assert config["zero_optimization"]["stage"] == 1
    assert config["tensorboard"] == {"enabled": False}


def test_keys_with_a_setting_become_it(file):
    content = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}, "steps_per_print": None}
    resolved = _adopted(content, file, {"ZERO_STAGE": "2"})
    assert resolved.run.deepspeed.offload_optimizer == "cpu"
    origin = resolved.origins["deepspeed.offload_optimizer"]
    assert (origin.layer, origin.detail.split()[0]) == ("env", "DS_CONFIG_OVERRIDES")
    assert resolved.run.deepspeed.config_overrides == ""
    assert deepspeed_config(resolved.run, 4)["zero_optimization"]["offload_optimizer"]["device"] == "cpu"


def test_ranks_see_what_the_launcher_saw(file, tmp_path):
    resolved = _adopted({"zero_optimization": {"round_robin_gradients": True}}, file)
    save_config(resolved.run, resolved.origins, tmp_path / "config.yaml")
    file.write_text('{"zero_optimization": {"round_robin_gradients": false}}')
    assert deepspeed_config(load_config(tmp_path / "config.yaml"), 4) == deepspeed_config(resolved.run, 4)
    assert "mine.json" not in (tmp_path / "config.yaml").read_text().split("config_overrides:")[1].split("#")[0]


def test_what_agrees_with_the_settings_is_accepted(file):
    content = {"train_batch_size": 8, "bfloat16": {"enabled": True}, "zero_optimization": {"stage": 1}}
    resolved = _adopted(content, file, {"GLOBAL_BATCH": "8"})
    assert "bfloat16" not in deepspeed_config(resolved.run, 4)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["not JSON"]),
        ("{'a': 1}", ["not JSON"]),
        ('{"a": NaN}', ["not JSON", "NaN"]),
        ("[1]", ["not an object"]),
        ({"zero_optimisation": {}}, ["zero_optimisation", "did you mean zero_optimization?"]),
        ({"zero_optimization": {"reduce_bucketsize": 1}}, ["did you mean reduce_bucket_size?"]),
        ({"zero_optimization": {"offload_param": {"devise": "cpu"}}}, ["devise", "did you mean device?"]),
        ({"zero_optimization": 1}, ["not an object"]),
        ({"fp16": {"lossscale": 1}}, ["did you mean loss_scale?"]),
        ({"optimizer": {"type": "Adam"}}, ["OPT, LR"]),
        ({"scheduler": {}}, ["LR_DECAY_STYLE"]),
        ({"zero_optimization": {"reduce_bucket_size": -1}}, ["reduce_bucket_size", "greater than 0"]),
        ({"zero_optimization": {"offload_optimizer": {"device": "disk"}}}, ["device", "none, cpu, nvme"]),
    ],
)
def test_files_that_are_refused(content, words, file):
    with pytest.raises(ConfigError) as problem:
        _adopted(content, file)
    assert all(word in str(problem.value) for word in (*words, "DS_CONFIG_OVERRIDES"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"zero_optimization": {"reduce_bucket_size": {"a": 1}}}, ["reduce_bucket_size is an object, not one value"]),
        ({"steps_per_print": {"a": 1}}, ["steps_per_print is an object"]),
        ({"train_batch_size": {"a": 1}}, ["train_batch_size is an object"]),
        ({"prescale_gradients": {"a": 1}}, ["prescale_gradients is an object"]),
        ({"comms_logger": True}, ["comms_logger is true, not an object"]),
        ({"zero_optimization": {"reduce_bucket_size": None}}, ["reduce_bucket_size: null is not a value"]),
        ('{"zero_optimization": {"stage": 2, "stage": 1}}', ["stage is given twice"]),
    ],
)
def test_values_of_the_wrong_shape_are_refused(content, words, file):
    with pytest.raises(ConfigError) as problem:
        deepspeed_config(_adopted(content, file).run, 4)
    assert all(word in str(problem.value) for word in (*words, "DS_CONFIG_OVERRIDES"))


def test_the_old_name_of_bf16_is_the_new_one(file):
    config = deepspeed_config(_adopted({"bfloat16": {"check_grad_overflow": False}}, file).run, 4)
    assert "bfloat16" not in config
    assert config["bf16"]["check_grad_overflow"] is False


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    env = {"DS_CONFIG_OVERRIDES": str(tmp_path / "pipe")}
    resolved = derive(resolve("tiny", env=env, machine="generic"), num_hosts=1, ranks_per_host=4, vocab_size=500)
    with pytest.raises(ConfigError, match="not a regular file"):
        adopt(resolved, SETTING_OF)


def test_a_file_that_is_not_there():
    env = {"DS_CONFIG_OVERRIDES": "no/such.json"}
    resolved = derive(resolve("tiny", env=env, machine="generic"), num_hosts=1, ranks_per_host=4, vocab_size=500)
    with pytest.raises(ConfigError, match=r"DS_CONFIG_OVERRIDES=no/such.json: No such file"):
        adopt(resolved, SETTING_OF)


@pytest.mark.parametrize("key", FOLLOWS)
def test_what_follows_from_settings_can_not_be_changed(key, file):
    content: dict[str, Any] = {}
    section = content
    for part in key.split(".")[:-1]:
        section = section.setdefault(part, {})
    section[key.split(".")[-1]] = 31
    with pytest.raises(ConfigError) as problem:
        deepspeed_config(_adopted(content, file).run, 4)
    assert FOLLOWS[key] in str(problem.value)


@pytest.mark.parametrize("section", ["zero_optimization", "bf16", "comms_logger"])
def test_an_empty_section_changes_nothing(section, file):
    env = {"ZERO_STAGE": "2", "COMMS_LOGGER": "1"}
    ours = deepspeed_config(_adopted({}, file, env).run, 4)
    assert deepspeed_config(_adopted({section: {}}, file, env).run, 4) == ours


def test_a_setting_and_the_file_that_differ_are_refused(file):
    content = {"zero_optimization": {"reduce_bucket_size": 1000}}
    with pytest.raises(ConfigError, match=r"REDUCE_BUCKET_SIZE=2000 \(env REDUCE_BUCKET_SIZE\); drop one of them"):
        _adopted(content, file, {"REDUCE_BUCKET_SIZE": "2000"})
    assert _adopted(content, file, {"REDUCE_BUCKET_SIZE": "1000"}).run.deepspeed.reduce_bucket_size == 1000


def test_two_keys_of_one_setting_that_differ_are_refused(file):
    places = {"offload_param": {"nvme_path": "/a"}, "offload_optimizer": {"nvme_path": "/b"}}
    with pytest.raises(ConfigError, match="nvme_path"):
        _adopted({"zero_optimization": places}, file)


def test_known_keys_are_those_of_the_installed_deepspeed():
    from deepspeed.runtime import precision_config as precision
    from deepspeed.runtime.zero import config as zero
    from deepspeed.runtime.zero import offload_config as offload

    models = {
        "zero_optimization": zero.DeepSpeedZeroConfig,
        "zero_optimization.offload_param": offload.DeepSpeedZeroOffloadParamConfig,
        "zero_optimization.offload_optimizer": offload.DeepSpeedZeroOffloadOptimizerConfig,
        "bf16": precision.DeepSpeedBF16Config,
        "fp16": precision.DeepSpeedFP16Config,
    }
    for name, model in models.items():
        current = {
            field.alias or key
            for key, field in model.model_fields.items()
            if not (field.json_schema_extra or {}).get("deprecated")
        }
        assert set(KEYS_OF[name]) == current, name


def test_known_sections_are_read_by_the_installed_deepspeed():
    import deepspeed

    sources = "".join(path.read_text(errors="replace") for path in Path(deepspeed.__file__).parent.rglob("*.py"))
    assert not [key for key in {*TOP_LEVEL, *OURS} if f'"{key}"' not in sources and f"'{key}'" not in sources]
