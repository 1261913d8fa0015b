"""A user's own DeepSpeed JSON (``DS_CONFIG_OVERRIDES=file.json``), without DeepSpeed.

DeepSpeed ignores a key it does not know, and two places that say different things about one
number train something that nobody asked for. So a key that is a setting of ours becomes
that setting, a key that follows from settings must agree with them, an unknown one is
refused, and only what is left is merged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from megads.config.parse import did_you_mean, parse
from megads.config.resolve import Resolved, rank_of
from megads.config.schema import RunConfig
from megads.config.setting import Origin
from megads.config.tree import env_name, fields, nested, value_of
from megads.errors import ConfigError

SETTING = "deepspeed.config_overrides"

# Keys that follow from settings -> what decides them.
FOLLOWS = {
    "train_batch_size": "GLOBAL_BATCH",
    "train_micro_batch_size_per_gpu": "MICRO_BATCH",
    "gradient_accumulation_steps": "GRAD_ACC_STEPS",
    "gradient_clipping": "CLIP_GRAD",
    "zero_optimization.stage": "ZERO_STAGE",
    "zero_optimization.overlap_comm": "DDP_IMPL=torch (true) or local (false)",
    "bf16.enabled": "DTYPE",
    "bfloat16.enabled": "DTYPE",
    "fp16.enabled": "DTYPE",
    "fp16.auto_cast": "DTYPE",
    "fp16.loss_scale": "LOSS_SCALE",
    "fp16.initial_scale_power": "INITIAL_LOSS_SCALE_POWER",
    "fp16.loss_scale_window": "LOSS_SCALE_WINDOW",
    "fp16.hysteresis": "LOSS_SCALE_HYSTERESIS",
    "fp16.min_loss_scale": "MIN_LOSS_SCALE",
}
# Sections that megads does itself -> the settings to use instead.
OURS = {
    "optimizer": "OPT, LR, WEIGHT_DECAY, ADAM_BETA1, ADAM_BETA2 and ADAM_EPS",
    "scheduler": "LR_DECAY_STYLE, LR_WARMUP_ITERS and LR_DECAY_ITERS",
    "activation_checkpointing": "RECOMPUTE_WITH=deepspeed, PARTITION_ACTIVATIONS and CPU_CHECKPOINTING",
    "pipeline": "PP and PIPELINE_SPLIT",
    "tensor_parallel": "TP",
    "torch_autocast": "DTYPE",
    "flops_profiler": "FLOPS_PROFILE and FLOPS_PROFILE_STEP",
    "gradient_allreduce_op": "nothing: gradients are means over counted tokens",
    "seq_parallel_communication_data_type": "COMMUNICATION_DATA_TYPE",
    "dataloader_drop_last": "nothing: megads reads the data",
    "data_efficiency": "nothing: megads reads the data",
}
# Further keys that DeepSpeed 0.19.8 reads.
OTHERS = (
    *("aio", "autotuning", "checkpoint", "comet", "comms_logger", "communication_data_type", "compile", "csv_monitor"),
    *("data_types", "datastates_ckpt", "disable_allgather", "disable_python_gc", "dump_state", "expert_parallel"),
    *("gradient_predivide_factor", "hybrid_engine", "keep_in_fp32_modules", "log_level"),
    *("managed_gradient_accumulation", "memory_breakdown", "nebula", "prescale_gradients", "sparse_gradients"),
    *("steps_per_print", "tensorboard", "timers", "use_data_before_expert_parallelism", "vocabulary_size"),
    *("wall_clock_breakdown", "wandb", "weight_quantization", "zero_allow_untested_optimizer"),
    *("zero_force_ds_cpu_optimizer", "zero_optimization"),
)
TOP_LEVEL = tuple(sorted({*(key.split(".")[0] for key in FOLLOWS), *OURS, *OTHERS}))
KEYS_OF: Mapping[str, tuple[str, ...]] = {
    "zero_optimization": (
        *("allgather_bucket_size", "allgather_partitions", "compute_grad_norm", "contiguous_gradients"),
        *("elastic_checkpoint", "enable_sanity_checks", "ignore_unused_parameters", "leaf_module", "legacy_stage1"),
        *("load_from_fp32_weights", "log_trace_cache_warnings", "memory_efficient_linear", "offload_optimizer"),
        *("offload_param", "overlap_comm", "override_module_apply", "parameter_alignment", "reduce_bucket_size"),
        *("pipeline_loading_checkpoint", "reduce_scatter", "round_robin_gradients", "stage", "sub_group_size"),
        *("save_muon_momentum_buffer_in_memory", "stage3_allgather_sequential", "stage3_max_live_parameters"),
        *("stage3_gather_16bit_weights_on_model_save", "stage3_max_reuse_distance"),
        *("stage3_model_persistence_threshold", "stage3_module_granularity_threshold"),
        *(
            "stage3_param_persistence_threshold",
            "stage3_prefetch_bucket_size",
            "stage3_use_all_reduce_for_fetch_params",
        ),
        *("use_multi_rank_bucket_allreduce", "zenflow", "zero_hpz_partition_size", "zero_quantized_gradients"),
        *("zero_quantized_nontrainable_weights", "zero_quantized_weights"),
    ),
    "zero_optimization.offload_optimizer": (
        *("buffer_count", "cpuadam_cores_perc", "device", "fast_init", "nvme_path", "pin_memory", "pipeline_read"),
        *("pipeline_write", "ratio", "super_offload"),
    ),
    "zero_optimization.offload_param": (
        *("buffer_count", "buffer_size", "device", "max_in_cpu", "nvme_path", "pin_memory"),
    ),
    "bf16": (
        *("bf16_master_weights_and_grads", "bf16_optimizer_states", "check_grad_overflow", "enabled"),
        "immediate_grad_update",
    ),
    "fp16": (
        *("auto_cast", "consecutive_hysteresis", "enabled", "fp16_master_weights_and_grads", "hysteresis"),
        *("initial_scale_power", "loss_scale", "loss_scale_window", "min_loss_scale"),
    ),
}
"""Of the sections whose unknown keys DeepSpeed refuses only on the ranks; without deprecated names."""


def adopt(resolved: Resolved, setting_of: Mapping[str, str]) -> Resolved:
    """Return derived settings that hold what ``DS_CONFIG_OVERRIDES`` says.

    A key that is a setting becomes its value, unless the user gave the setting another one.
    What is left stands in ``deepspeed.config_overrides`` as JSON in place of the file's
    name, so that the ranks need no file and can not see another one.

    Args:
        resolved: derived settings.
        setting_of: DeepSpeed's dotted key -> our setting.

    Raises:
        ConfigError: the file can not be read, a key is unknown, or it contradicts a setting.
    """
    given = resolved.run.deepspeed.config_overrides
    if not given:
        return resolved
    content = _read(given)
    shown = f"DS_CONFIG_OVERRIDES={given}" if not given.lstrip().startswith("{") else "DS_CONFIG_OVERRIDES"
    rest: dict[str, Any] = {}
    values = {name: value_of(resolved.run, name) for name in fields()}
    origins = dict(resolved.origins)
    adopted: dict[str, str] = {}
    for key, value in _leaves(content, shown):
        if key not in setting_of:
            put(rest, key, value)
            continue
        name = setting_of[key]
        wanted = _as_setting(key, value, name, shown)
        explicit = rank_of(resolved.origins[name]) >= rank_of(Origin("env"))
        if (explicit or name in adopted) and values[name] != wanted:
            other = f"{env_name(name)}={values[name]} ({origins[name]})" if explicit else f"its {adopted[name]}"
            raise ConfigError(f"{shown}: {key} is {json.dumps(value)}, but {other}; drop one of them")
        if not explicit:
            source = resolved.origins[SETTING]
            values[name], adopted[name] = wanted, key
            origins[name] = Origin(source.layer, f"{source.detail} {key}")
    values[SETTING] = json.dumps(rest) if rest else ""
    return Resolved(RunConfig.model_validate(nested(values)), origins, resolved.notes)


def merge(config: dict[str, Any], text: str, setting_of: Mapping[str, str]) -> None:
    """Merge the overrides ``text`` (JSON, or the name of a file) into DeepSpeed's dictionary.

    Raises:
        ConfigError: a key is unknown, or has another value than the settings give it.
    """
    if not text:
        return
    shown = "DS_CONFIG_OVERRIDES"
    sections = {key.rpartition(".")[0] for key in setting_of}
    for key, value in _leaves(_read(text), shown):
        ours = key.replace("bfloat16.", "bf16.")  # DeepSpeed reads the old name only where the new one is not
        if key in sections:
            raise ConfigError(f"{shown}: {key} is {json.dumps(value)}, not an object; give {{...}}")
        for place in (at for at, letter in enumerate(ours) if letter == "."):
            if ours[:place] in setting_of or not isinstance(get(config, ours[:place]), (dict, type(None))):
                raise ConfigError(f"{shown}: {ours[:place]} is an object, not one value")
        if key in FOLLOWS and get(config, ours) != value:
            now = get(config, ours)
            raise ConfigError(f"{shown}: {key} is {json.dumps(value)}, but the settings give {now}; use {FOLLOWS[key]}")
        if key in setting_of and get(config, key) != value:
            raise ConfigError(f"{shown}: {key} is {json.dumps(value)}; use {env_name(setting_of[key])}")
        if key not in FOLLOWS:
            put(config, ours, value)


def _read(given: str) -> dict[str, Any]:
    """Return the object in a JSON text or file."""
    text, shown = given, "DS_CONFIG_OVERRIDES"
    if not given.lstrip().startswith("{"):
        shown = f"DS_CONFIG_OVERRIDES={given}"
        try:
            if Path(given).exists() and not (Path(given).is_file() or Path(given).is_dir()):
                raise ConfigError(f"{shown}: not a regular file; give a JSON file such as {{}}")
            text = Path(given).read_text(encoding="utf8")
        except OSError as error:
            raise ConfigError(f"{shown}: {error.strerror}; give a JSON file such as {{}}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{shown}: not text in UTF-8; give a JSON file such as {{}}") from None

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        for key in (key for key in keys if len(pairs) < 1000 and keys.count(key) > 1):
            raise ConfigError(f"{shown}: {key} is given twice in one object; drop one of them")
        return dict(pairs)

    try:
        content = json.loads(text, parse_constant=_no_constant, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{shown}: not JSON: {error}; comments and trailing commas are not allowed") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{shown}: holds {str(content)[:40]!r}, not an object; give {{...}}")
    return content


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not a number")


def _leaves(content: Mapping[str, Any], shown: str) -> Iterator[tuple[str, Any]]:
    """Yield every dotted key that is no section, and check that DeepSpeed knows it."""
    for top, value in content.items():
        if top not in TOP_LEVEL:
            raise ConfigError(f"{shown}: DeepSpeed has no key {top!r}{did_you_mean(top, TOP_LEVEL)}")
        if top in OURS:
            raise ConfigError(f"{shown}: {top} is not DeepSpeed's to decide; use {OURS[top]}")
        yield from _flat(top, value, shown)


def _flat(key: str, value: Any, shown: str) -> Iterator[tuple[str, Any]]:
    known = KEYS_OF.get(key.replace("bfloat16", "bf16"), ())
    if known and not isinstance(value, dict):
        raise ConfigError(f"{shown}: {key} is {json.dumps(value)}, not an object; give {{...}}")
    for inner in value if known else ():
        if inner not in known:
            raise ConfigError(f"{shown}: {key} has no key {inner!r}{did_you_mean(inner, known)}")
    if isinstance(value, dict):
        # An empty section says nothing; passed on, it would take the place of ours.
        for inner, each in value.items():
            yield from _flat(f"{key}.{inner}", each, shown)
    else:
        yield key, value


def _as_setting(key: str, value: Any, name: str, shown: str) -> Any:
    is_null = value is None
    if is_null:
        default = fields()[name].default
        value = (
            "" if isinstance(default, str) and default != "none" else {int: 0, bool: False}.get(type(default), default)
        )
    try:
        return parse(value, fields()[name])
    except ValueError as error:
        why = "null is no value for it; leave it out" if is_null else error
        raise ConfigError(f"{shown}: {key}: {why}") from None


def put(config: dict[str, Any], key: str, value: Any) -> None:
    """Set the dotted ``key``, making the sections on its way."""
    *sections, last = key.split(".")
    for section in sections:
        config = config.setdefault(section, {})
    config[last] = value


def get(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of the dotted ``key``, None where there is none."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
