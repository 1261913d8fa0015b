"""Every setting of a run, each declared once.

Sizes that follow from others have the default 0, which means "derive it"; the formulas
are in ``megads.config.derive``. Model families (GPT, Llama) are bundles of defaults, see
``megads.families``.
"""

from __future__ import annotations

from typing import Any, Literal

from megads.config.machine_facts import StarterName
from megads.config.optimizers import OPTIMIZERS
from megads.config.setting import DTYPES, Section, Word, setting
from megads.config.settings.checkpoint import CheckpointConfig
from megads.config.settings.data import DataConfig
from megads.config.settings.engine import DeepSpeedConfig, RecomputeConfig
from megads.config.settings.log import LogConfig, TrackConfig
from megads.config.settings.model import ModelConfig
from megads.config.settings.optimizer import OptimConfig
from megads.config.settings.option_units import minutes
from megads.config.settings.profile import ProfileConfig
from megads.config.settings.schedule import LrFinderConfig
from megads.config.settings.seeds import SeedSettings
from megads.config.settings.stability import StabilityConfig
from megads.config.settings.times import TimesConfig

__all__ = [
    "OPTIMIZER_DEFAULTS",
    "CheckpointConfig",
    "DataConfig",
    "DeepSpeedConfig",
    "LaunchConfig",
    "LogConfig",
    "LrFinderConfig",
    "ModelConfig",
    "OptimConfig",
    "ParallelConfig",
    "ProfileConfig",
    "RecomputeConfig",
    "RunConfig",
    "StabilityConfig",
    "TimesConfig",
    "TrackConfig",
    "TrainConfig",
]

OPTIMIZER_DEFAULTS: dict[str, dict[str, Any]] = {
    name: {"optim.lr_decay_style": "constant"} for name, row in OPTIMIZERS.items() if row.is_averaged
}
"""What ``optim.optimizer`` changes in the defaults, below families: an average of iterates is in place of a decay."""


class ParallelConfig(Section):
    """How ranks are split. Data parallelism takes what the other axes leave."""

    tensor: int = setting(
        1,
        env="TP",
        flags={"--tensor-model-parallel-size": None},
        help="tensor-parallel degree: ranks that split every layer's heads and widths",
        gt=0,
    )
    pipeline: int = setting(
        1,
        env="PP",
        flags={"--pipeline-model-parallel-size": None},
        help="pipeline stages: groups of ranks that hold some of the layers each",
        gt=0,
    )
    sequence: int = setting(
        1,
        env="SP",
        flags={"--ds-sequence-parallel-size": None},
        help="Ulysses sequence-parallel degree: ranks that split every sample",
        gt=0,
    )
    data: int = setting(0, env="DP", help="data-parallel degree; 0: ranks / (TP PP SP)", ge=0)
    zero_stage: Literal[0, 1, 2, 3] = setting(
        1,
        env="ZERO_STAGE",
        switches={"USE_DISTRIBUTED_OPTIMIZER": 1},
        flags={"--zero-stage": None, "--use-distributed-optimizer": 1},
        help="DeepSpeed ZeRO stage; what DP x SP ranks share: 1 optimizer, 2 also gradients, 3 also weights",
    )
    pipeline_split: str = setting(
        "layers",
        env="PIPELINE_SPLIT",
        flags={"--pp-partition-method": Word({"type:transformer": "layers", "type:transformer|embedding": "ends"})},
        help="layers of each stage: layers (equal), ends (embedding and head count as one each), "
        "parameters (equal), or a list such as 6,8,8,6",
    )
    scatter_norms: bool = setting(
        False,
        env="SCATTER_NORMS",
        aliases=("SEQUENCE_PARALLEL",),
        flags={"--sequence-parallel": True},
        help="Megatron's sequence parallelism: norms, dropout and residual split over the TP ranks",
    )
    ddp_impl: Literal["local", "torch"] = setting(
        "local",
        env="DDP_IMPL",
        flags={"--DDP-impl": None, "--overlap-grad-reduce": "torch"},
        help="gradients are reduced after the backward pass (local) or while it runs (torch; ZeRO 1 to 3, PP=1)",
    )


class TrainConfig(SeedSettings):
    """How long, in what batches and in which precision."""

    micro_batch: int = setting(
        1,
        env="MICRO_BATCH",
        flags={"--micro-batch-size": None},
        aliases=("MICRO_BATCH_SIZE",),
        help="samples per forward pass of a data-parallel rank",
        gt=0,
    )
    grad_acc_steps: int = setting(
        0, env="GRAD_ACC_STEPS", help="micro-batches per step; 0: GLOBAL_BATCH / (MICRO_BATCH DP), else 1", ge=0
    )
    global_batch: int = setting(
        0,
        env="GLOBAL_BATCH",
        flags={"--global-batch-size": None},
        aliases=("GLOBAL_BATCH_SIZE",),
        help="samples per step; 0: MICRO_BATCH GRAD_ACC_STEPS DP",
        unit="samples",
        ge=0,
    )
    train_tokens: int = setting(
        4_673_780_159_710,
        env="TRAIN_TOKENS",
        flags={"--train-tokens": None},
        help="token budget; is overridden by TRAIN_ITERS or TRAIN_SAMPLES; 0: from these",
        unit="tokens",
        ge=0,
    )
    train_samples: int = setting(
        0, env="TRAIN_SAMPLES", flags={"--train-samples": None}, help="sample budget; 0: derived", unit="samples", ge=0
    )
    rampup_batch_size: str = setting(
        "",
        env="RAMPUP_BATCH_SIZE",
        flags={"--rampup-batch-size": None},
        words=True,
        help="START INCREMENT SAMPLES: GLOBAL_BATCH is reached from START in steps of INCREMENT over SAMPLES",
    )
    skip_iterations: str = setting(
        "",
        env="SKIP_TRAIN_ITERATION_RANGE",
        flags={"--skip-train-iteration-range": None, "--train-range-to-skip": None},
        words=True,
        help="steps whose data is skipped, e.g. 101-200 301-400",
    )
    train_iters: int = setting(
        0,
        env="TRAIN_ITERS",
        aliases=("TRAIN_ITER",),
        flags={"--train-iters": None},
        help="steps; unset: from TRAIN_TOKENS or TRAIN_SAMPLES; 0: evaluate only",
        unit="steps",
        ge=0,
    )
    dtype: Literal["fp32", "bf16", "fp16"] = setting(
        "bf16",
        env="DTYPE",
        flags={"--fp16": "fp16", "--bf16": "bf16"},
        synonyms=DTYPES,
        help="dtype of weights and activations",
    )
    eval_interval: int = setting(
        100,
        env="EVAL_INTERVAL",
        flags={"--eval-interval": None},
        help="steps between validations; 0: never",
        unit="steps",
        ge=0,
    )
    eval_iters: int = setting(
        20, env="EVAL_ITERS", flags={"--eval-iters": None}, help="global batches in a validation", ge=0
    )
    eval_at_start: bool = setting(True, env="EVAL_AT_START", help="validate before the first step of a new run")
    evaluate_only: bool = setting(
        False,
        env="EVALUATE_ONLY",
        aliases=("SKIP_TRAIN",),
        flags={"--skip-train": True},
        help="validate, and test where there is a test split, then end: no step, no checkpoint; same as TRAIN_ITERS=0",
    )
    exit_interval: int = setting(
        0,
        env="EXIT_INTERVAL",
        flags={"--exit-interval": None},
        help="save and stop (exit 75) after a multiple of this many steps; 0: never",
        unit="steps",
        ge=0,
    )
    exit_duration_min: float = setting(
        0.0,
        env="EXIT_DURATION_IN_MINS",
        flags={"--exit-duration-in-mins": None},
        help="save and stop (exit 75) after this time in training; 0: never",
        unit="min",
        ge=0,
    )
    samples_offset: int = setting(
        0,
        env="SAMPLES_OFFSET",
        help="set at launch: samples of a resumed run beyond those of as many steps of its present batch",
        unit="samples",
    )
    max_skipped: int = setting(
        50,
        env="MAX_SKIPPED_STEPS",
        help="end with an error after this many steps in a row with a gradient that is not finite; 0: never",
        unit="steps",
        ge=0,
    )
    force: bool = setting(
        False,
        env="FORCE",
        help="start even if the memory estimate says it will not fit, or the data was made with another tokenizer",
    )


class LaunchConfig(Section):
    """How ranks are started."""

    launch_with: Literal["auto", StarterName] = setting(
        "auto",
        env="LAUNCH_WITH",
        synonyms={"open-mpi": "openmpi", "ompi": "openmpi", "slurm": "srun"},
        instead={
            **dict.fromkeys(("mpirun", "mpiexec", "mpi"), "openmpi, mpich or pals, whose mpiexec it is, or auto"),
            **dict.fromkeys(("ezpz", "ezpz-launch"), "auto"),
            **dict.fromkeys(("python", "none"), "direct"),
            **dict.fromkeys(("accelerate", "torch", "torch.distributed"), "torchrun"),
            **dict.fromkeys(("pbs", "lsf"), "auto, which finds the scheduler's launcher"),
        },
        help="launcher of ranks; auto: the machine's, else by scheduler and number of hosts",
    )
    ranks_per_host: int = setting(
        0, env="NGPU_PER_HOST", help="ranks on each host; 0: its accelerators, on CPU hosts TP PP SP DP", ge=0
    )
    num_hosts: int = setting(
        0, env="NHOSTS", help="hosts to use, the first of the allocation; 0: all; the others are spare", ge=0
    )
    hostfile: str = setting("", env="HOSTFILE", help="one host per line; empty: the scheduler's")
    cpu_bind: str = setting(
        "",
        env="CPU_BIND",
        help="core lists of ranks, e.g. list:0-7:8-15, or none; empty: the machine's cores",
    )
    walltime: str = setting(
        "",
        env="WALLTIME",
        flags={"--walltime": None},
        help="hours the run may take, e.g. 6:00:00; empty: the scheduler's",
    )
    max_restarts: int = setting(
        0,
        env="MAX_RESTARTS",
        flags={"--max-restarts": None},
        help="restarts from the last checkpoint after ranks failed",
        ge=0,
    )
    timeout_s: float = setting(
        600.0,
        env="DIST_TIMEOUT",
        flags={"--distributed-timeout-minutes": Word(convert=minutes)},
        aliases=("TORCH_DDP_TIMEOUT", "MEGADS_TIMEOUT_S"),
        help="longest wait for another rank",
        unit="s",
        gt=0,
        le=1e6,
    )


class RunConfig(Section):
    """Everything that decides a run. Ranks read this from ``<run>/config.yaml`` and nothing else."""

    preset: str = setting(
        "", env="MODEL_ARCH", help="name of a preset (megads config --presets), or a file such as mine.yaml"
    )
    defaults: Literal["megads", "megatron"] = setting(
        "megads",
        env="MEGADS_DEFAULTS",
        flags={"--megatron-defaults": "megatron"},
        help="whose defaults apply; megatron unless said otherwise if the command names no preset and "
        "--num-layers, --hidden-size or --num-attention-heads",
    )
    machine: str = setting("", env="MACHINE", help="facts and defaults in envs/<machine>.yaml; empty: by host name")
    config_file: str = setting(
        "",
        env="CONFIG_FILE",
        flags={"--config": None},
        help="YAML file of settings, such as a run's config.yaml; above preset and machine, below the environment",
    )
    name: str = setting("", env="RUN_NAME", help="name of the run folder, runs/<name>; empty: the preset's name")
    dir: str = setting("", env="RUN_DIR", help="run folder, exactly; empty: runs/<name>")
    model: ModelConfig = ModelConfig()
    parallel: ParallelConfig = ParallelConfig()
    recompute: RecomputeConfig = RecomputeConfig()
    deepspeed: DeepSpeedConfig = DeepSpeedConfig()
    train: TrainConfig = TrainConfig()
    optim: OptimConfig = OptimConfig()
    lr_finder: LrFinderConfig = LrFinderConfig()
    data: DataConfig = DataConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    times: TimesConfig = TimesConfig()
    profile: ProfileConfig = ProfileConfig()
    track: TrackConfig = TrackConfig()
    stability: StabilityConfig = StabilityConfig()
    launch: LaunchConfig = LaunchConfig()
