"""The settings of recomputation and of DeepSpeed, besides the layout and the batch."""

from __future__ import annotations

from typing import Literal

from megads.config.setting import DTYPES, Section, setting


class RecomputeConfig(Section):
    """What is computed again in the backward pass instead of kept."""

    granularity: Literal["none", "selective", "full"] = setting(
        "none",
        env="RECOMPUTE",
        aliases=("RECOMPUTE_GRANULARITY",),
        switches={
            "RECOMPUTE_ACTIVATIONS": "selective",
            "USE_ACTIVATION_CHECKPOINTING": "full",
            "CHECKPOINT_ACTIVATIONS": "full",
        },
        flags={
            "--recompute-granularity": None,
            "--recompute-activations": "selective",
            "--checkpoint-activations": "full",
        },
        help="selective: the attention core; full: whole layers",
    )
    method: Literal["uniform", "block"] = setting(
        "uniform",
        env="RECOMPUTE_METHOD",
        flags={"--recompute-method": None, "--checkpoint-activations": "uniform"},
        help="with RECOMPUTE=full: uniform (every group of layers keeps only its input) or block (the first "
        "layers of a stage)",
    )
    num_layers: int = setting(
        1,
        env="RECOMPUTE_NUM_LAYERS",
        aliases=("ACT_CKPT_NUM_LAYERS",),
        flags={"--recompute-num-layers": None, "--checkpoint-num-layers": None},
        help="with RECOMPUTE=full: layers in a group (uniform), or recomputed in each stage (block)",
        gt=0,
    )
    engine: Literal["torch", "deepspeed"] = setting(
        "torch",
        env="RECOMPUTE_WITH",
        switches={"DEEPSPEED_ACTIVATION_CHECKPOINTING": "deepspeed", "DISTRIBUTE_SAVED_ACTIVATIONS": "deepspeed"},
        flags={
            "--deepspeed-activation-checkpointing": "deepspeed",
            "--distribute-saved-activations": "deepspeed",
            "--distribute-checkpointed-activations": "deepspeed",
        },
        help="implementation of recomputation; the settings below need deepspeed",
    )
    partition_activations: bool = setting(
        False,
        env="PARTITION_ACTIVATIONS",
        switches={"DISTRIBUTE_SAVED_ACTIVATIONS": True},
        flags={
            "--partition-activations": True,
            "--distribute-saved-activations": True,
            "--distribute-checkpointed-activations": True,
        },
        help="split kept inputs over the TP ranks; gather them for the backward pass",
    )
    cpu_checkpointing: bool = setting(
        False,
        env="CPU_CHECKPOINTING",
        aliases=("CHECKPOINT_IN_CPU",),
        flags={"--checkpoint-in-cpu": True},
        help="keep inputs in host memory",
    )
    contiguous_memory: bool = setting(
        False,
        env="CONTIGUOUS_CHECKPOINTING",
        aliases=("CONTIGIOUS_CHECKPOINTING",),
        flags={"--contigious-checkpointing": True},
        help="keep partitioned inputs in one buffer; needs PARTITION_ACTIVATIONS",
    )
    synchronize: bool = setting(
        False,
        env="SYNCHRONIZE_EACH_LAYER",
        flags={"--synchronize-each-layer": True},
        help="synchronize the device at every checkpoint",
    )
    profile: bool = setting(
        False,
        env="PROFILE_BACKWARD",
        flags={"--profile-backward": True},
        help="time the forward and backward of every checkpoint",
    )


class DeepSpeedConfig(Section):
    """DeepSpeed's settings besides the layout, the batch and the precision."""

    config_overrides: str = setting(
        "",
        env="DS_CONFIG_OVERRIDES",
        flags={"--deepspeed_config": None, "--deepspeed-config": None},
        help="JSON file merged into DeepSpeed's dictionary; may not contradict settings",
    )
    offload_optimizer: Literal["none", "cpu", "nvme"] = setting(
        "none",
        env="OFFLOAD_OPTIMIZER",
        switches={"CPU_OPTIMIZER": "cpu"},
        flags={"--cpu-optimizer": "cpu"},
        help="where the optimizer state is kept and updated; needs ZERO_STAGE 1 or more, nvme 3",
    )
    offload_params: Literal["none", "cpu", "nvme"] = setting(
        "none",
        env="OFFLOAD_PARAMS",
        flags={"--remote-device": None},
        help="where the partitioned weights are kept; needs ZERO_STAGE=3",
    )
    nvme_path: str = setting("", env="NVME_PATH", help="folder on a local NVMe disk for offloaded state")
    offload_pin_memory: bool = setting(
        True, env="OFFLOAD_PIN_MEMORY", flags={"--use-pin-memory": True}, help="page-lock the host memory of offload"
    )
    offload_buffer_count: int = setting(4, env="OFFLOAD_BUFFER_COUNT", help="buffers of NVMe offload", gt=0)
    offload_pipeline_read: bool = setting(False, env="OFFLOAD_PIPELINE_READ", help="prefetch from NVMe")
    offload_pipeline_write: bool = setting(False, env="OFFLOAD_PIPELINE_WRITE", help="write to NVMe in the background")
    hpz_partition_size: int = setting(
        1,
        env="ZERO_HPZ_PARTITION_SIZE",
        help="ZeRO++ hpZ: ranks (of one host) that hold a second copy of the weights together; needs ZERO_STAGE=3",
        gt=0,
    )
    communication_data_type: Literal["fp32", "bf16", "fp16"] = setting(
        "fp32",
        env="COMMUNICATION_DATA_TYPE",
        synonyms=DTYPES,
        help="dtype of gradients in collectives; below fp32 it adds rounding",
    )
    grad_accum_dtype: Literal["fp32", "bf16", "fp16"] = setting(
        "fp32",
        env="GRAD_ACCUM_DTYPE",
        flags={"--accumulate-allreduce-grads-in-fp32": "fp32"},
        synonyms=DTYPES,
        help="dtype of accumulated gradients in half precision",
    )
    contiguous_gradients: bool = setting(
        True,
        env="CONTIGUOUS_GRADIENTS",
        flags={"--zero-contigious-gradients": True},
        help="copy gradients into one contiguous buffer",
    )
    reduce_scatter: bool = setting(
        True, env="REDUCE_SCATTER", flags={"--zero-reduce-scatter": True}, help="reduce gradients to their owner only"
    )
    reduce_bucket_size: int = setting(
        50_000_000, env="REDUCE_BUCKET_SIZE", help="of one reduction", unit="elements", gt=0
    )
    allgather_bucket_size: int = setting(
        50_000_000, env="ALLGATHER_BUCKET_SIZE", help="bucket size of one all-gather of weights", unit="elements", gt=0
    )
    sub_group_size: int = setting(
        1_000_000_000, env="SUB_GROUP_SIZE", help="ZeRO 3: elements updated in one step", unit="elements", gt=0
    )
    prefetch_bucket_size: int = setting(
        50_000_000, env="STAGE3_PREFETCH_BUCKET_SIZE", help="ZeRO 3: elements to prefetch", unit="elements", ge=0
    )
    param_persistence_threshold: int = setting(
        100_000,
        env="STAGE3_PARAM_PERSISTENCE_THRESHOLD",
        help="ZeRO 3: smaller parameters are not partitioned",
        unit="elements",
        ge=0,
    )
    max_live_parameters: int = setting(
        1_000_000_000,
        env="STAGE3_MAX_LIVE_PARAMETERS",
        help="ZeRO 3: limit of gathered elements on a device",
        unit="elements",
        gt=0,
    )
    max_reuse_distance: int = setting(
        1_000_000_000,
        env="STAGE3_MAX_REUSE_DISTANCE",
        help="ZeRO 3: weights that are reused within this many elements stay gathered",
        unit="elements",
        ge=0,
    )
    zero_allow_untested_optimizer: bool = setting(
        True, env="ZERO_ALLOW_UNTESTED_OPTIMIZER", help="let DeepSpeed take any optimizer"
    )
    zero_force_ds_cpu_optimizer: bool = setting(
        False, env="ZERO_FORCE_DS_CPU_OPTIMIZER", help="with offload, demand DeepSpeed's own CPU optimizer"
    )
    steps_per_print: int = setting(0, env="STEPS_PER_PRINT", help="steps between DeepSpeed's own lines; 0: never", ge=0)
    wall_clock_breakdown: bool = setting(False, env="WALL_CLOCK_BREAKDOWN", help="DeepSpeed's own timers")
    comms_logger: bool = setting(False, env="COMMS_LOGGER", help="DeepSpeed's log of its collectives")
    comms_logger_verbose: bool = setting(False, env="COMMS_LOGGER_VERBOSE", help="each collective as it happens")
    comms_logger_prof_all: bool = setting(True, env="COMMS_LOGGER_PROF_ALL", help="all collectives, not a list")
    comms_logger_debug: bool = setting(False, env="COMMS_LOGGER_DEBUG", help="with the calling function's name")
