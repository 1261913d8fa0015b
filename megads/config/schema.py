"""Every setting of a run, each declared once.

Sizes that follow from others have the default 0, which means "derive it"; the formulas
are in ``megads.config.derive``. Model families (GPT, Llama) are bundles of defaults, see
``megads.families``.
"""

from __future__ import annotations

from typing import Any, Literal

from megads.config.machine_facts import RuntimeName, StarterName
from megads.config.optimizers import OPTIMIZERS
from megads.config.setting import DTYPES, Section, Word, in_steps, minutes, setting, split_rank
from megads.config.settings.checkpoint import CheckpointConfig
from megads.config.settings.data import DataConfig
from megads.config.settings.engine import DeepSpeedConfig, EngineConfig, RecomputeConfig
from megads.config.settings.finetune import FinetuneConfig
from megads.config.settings.log import LogConfig, TimesConfig, TrackConfig
from megads.config.settings.model import ModelConfig
from megads.config.settings.optimizer import OptimConfig
from megads.config.settings.profile import ProfileConfig
from megads.config.settings.schedule import LrFinderConfig
from megads.config.settings.stability import StabilityConfig
from megads.config.settings.tasks import TasksConfig

__all__ = ["DataConfig", "ModelConfig", "OptimConfig", "ProfileConfig"]  # with those of this file

OPTIMIZER_DEFAULTS: dict[str, dict[str, Any]] = {
    name: {"optim.lr_decay_style": "constant"} for name, row in OPTIMIZERS.items() if row.is_averaged
}
"""What ``optim.optimizer`` changes in the defaults, below families: an average of iterates is in place of a decay."""


class ParallelConfig(Section):
    """How ranks are split. Data parallelism takes what the other axes leave."""

    tensor: int = setting(
        1,
        "TP --tensor-model-parallel-size",
        "tensor-parallel degree: ranks that split every layer's heads and widths",
        gt=0,
    )
    pipeline: int = setting(
        1,
        "PP --pipeline-model-parallel-size",
        "pipeline stages: groups of ranks that hold some of the layers each",
        gt=0,
    )
    sequence: int = setting(
        1, "SP --ds-sequence-parallel-size", "Ulysses sequence-parallel degree: ranks that split every sample", gt=0
    )
    data: int = setting(0, "DP", "data-parallel degree; 0: ranks / (TP PP SP)", ge=0)
    zero_stage: Literal[0, 1, 2, 3] = setting(
        1,
        "ZERO_STAGE --zero-stage",
        "ZeRO stage; what DP x SP ranks share: 1 optimizer, 2 also gradients, 3 also weights",
        switches={"USE_DISTRIBUTED_OPTIMIZER": 1},
        flags={"--use-distributed-optimizer": 1},
    )
    pipeline_split: str = setting(
        "layers",
        "PIPELINE_SPLIT",
        "layers of each stage, or virtual stage: layers (equal), ends (embedding and head count as one each), "
        "parameters (equal), a list such as 6,8,8,6, or rank:N, the first stage of T5's decoder",
        flags={
            "--pp-partition-method": Word({"type:transformer": "layers", "type:transformer|embedding": "ends"}),
            "--pipeline-model-parallel-split-rank": Word(convert=split_rank),
        },
    )
    pipeline_schedule: Literal["auto", "1f1b", "interleaved", "zb-h1"] = setting(
        "auto",
        "PIPELINE_SCHEDULE",
        "order of a stage's forward and backward passes: 1f1b, interleaved (virtual stages) or zb-h1 (weight "
        "gradients fill the idle time); auto: interleaved with virtual stages, else 1f1b",
        flags={"--enable-zbh1-pipeline": "zb-h1", "--enable-zbh1-exact-semantics": "zb-h1"},
    )
    virtual_stages: int = setting(
        0,
        "VIRTUAL_STAGES --num-virtual-stages-per-pipeline-rank",
        "chunks of layers in each stage, which hold layers far apart; 0: by NUM_LAYERS_PER_VIRTUAL_STAGE, else 1",
        ge=0,
    )
    layers_per_virtual_stage: int = setting(
        0,
        "NUM_LAYERS_PER_VIRTUAL_STAGE --num-layers-per-virtual-pipeline-stage",
        "layers of a chunk; the chunks of a stage are then NLAYERS / (PP NUM_LAYERS_PER_VIRTUAL_STAGE)",
        ge=0,
    )
    scatter_norms: bool = setting(
        False,
        "SCATTER_NORMS SEQUENCE_PARALLEL --sequence-parallel",
        "Megatron's sequence parallelism: norms, dropout and residual split over the TP ranks",
    )
    tp_overlap: int = setting(
        1,
        "TP_OVERLAP",
        "chunks in which a split layer multiplies, while other chunks are sent between TP ranks; 0, 1: no overlap",
        flags={"--tp-comm-overlap": 4},
        unit="chunks",
        ge=0,
        le=64,
    )
    tp_overlap_with: Literal["collectives", "symmetric_memory"] = setting(
        "collectives",
        "TP_OVERLAP_WITH",
        "what overlaps: torch's collectives, or products of torch that read other ranks' memory (NVIDIA, "
        "SCATTER_NORMS=1; unverified on hardware)",
    )
    ddp_impl: Literal["local", "torch"] = setting(
        "local",
        "DDP_IMPL --DDP-impl",
        "DeepSpeed reduces gradients after the backward pass (local) or while it runs (torch; PP=1 and ZeRO 1 to 3, "
        "in bf16 ZeRO 2 or 3); the native engine always while it runs",
        flags={"--overlap-grad-reduce": "torch"},
    )


class TrainConfig(Section):
    """How long, in what batches and in which precision."""

    seed: int = setting(1234, "SEED --seed", "seed of weights, data order and dropout", ge=0, lt=2**32)
    weights_seed: int = setting(
        0, "WEIGHTS_SEED INIT_SEED", "seed of the initial weights only; 0: SEED", ge=0, lt=2**32
    )
    data_seed: int = setting(0, "DATA_SEED", "seed of the sample order only; 0: SEED", ge=0, lt=2**32)
    dropout_seed: int = setting(0, "DROPOUT_SEED", "seed of dropout only; 0: SEED", ge=0, lt=2**32)
    micro_batch: int = setting(
        1, "MICRO_BATCH MICRO_BATCH_SIZE --micro-batch-size", "samples per forward pass of a data-parallel rank", gt=0
    )
    grad_acc_steps: int = setting(
        0, "GRAD_ACC_STEPS", "micro-batches per step; 0: GLOBAL_BATCH / (MICRO_BATCH DP), else 1", ge=0
    )
    global_batch: int = setting(
        0,
        "GLOBAL_BATCH GLOBAL_BATCH_SIZE --global-batch-size",
        "samples per step; 0: MICRO_BATCH GRAD_ACC_STEPS DP",
        unit="samples",
        ge=0,
    )
    train_tokens: int = setting(
        4_673_780_159_710,
        "TRAIN_TOKENS --train-tokens",
        "token budget; is overridden by TRAIN_ITERS or TRAIN_SAMPLES; 0: from these",
        unit="tokens",
        ge=0,
    )
    train_samples: int = setting(0, "TRAIN_SAMPLES --train-samples", "sample budget; 0: derived", unit="samples", ge=0)
    rampup_batch_size: str = setting(
        "",
        "RAMPUP_BATCH_SIZE --rampup-batch-size",
        "START INCREMENT SAMPLES: GLOBAL_BATCH is reached from START in steps of INCREMENT over SAMPLES",
        words=True,
    )
    skip_iterations: str = setting(
        "",
        "SKIP_TRAIN_ITERATION_RANGE --skip-train-iteration-range --train-range-to-skip",
        "steps whose data is skipped, e.g. 101-200 301-400",
        words=True,
    )
    train_iters: int = in_steps(
        0, "TRAIN_ITERS TRAIN_ITER --train-iters", "steps; unset: from TRAIN_TOKENS or TRAIN_SAMPLES; 0: evaluate only"
    )
    planned_iters: int = in_steps(
        0,
        "PLANNED_ITERS",
        "steps that sample order, blend and schedule are made for; TRAIN_ITERS may grow up to it without a change; "
        "0: TRAIN_ITERS",
    )
    planned_samples: int = setting(0, "PLANNED_SAMPLES", "the same, in samples", unit="samples", ge=0)
    planned_tokens: int = setting(0, "PLANNED_TOKENS", "the same, in tokens", unit="tokens", ge=0)
    dtype: Literal["fp32", "bf16", "fp16"] = setting(
        "bf16", "DTYPE", "dtype of weights and activations", flags={"--fp16": "fp16", "--bf16": "bf16"}, synonyms=DTYPES
    )
    eval_interval: int = in_steps(100, "EVAL_INTERVAL --eval-interval", "steps between validations; 0: never")
    eval_iters: int = setting(20, "EVAL_ITERS --eval-iters", "global batches in a validation", ge=0)
    eval_at_start: bool = setting(True, "EVAL_AT_START", "validate before the first step of a new run")
    evaluate_only: bool = setting(
        False,
        "EVALUATE_ONLY SKIP_TRAIN --skip-train",
        "validate, and test where there is a test split, then end: no step, no checkpoint; same as TRAIN_ITERS=0",
    )
    exit_interval: int = in_steps(
        0, "EXIT_INTERVAL --exit-interval", "save and stop (exit 75) after a multiple of this many steps; 0: never"
    )
    exit_duration_min: float = setting(
        0.0,
        "EXIT_DURATION_IN_MINS --exit-duration-in-mins",
        "save and stop (exit 75) after this time in training; 0: never",
        unit="min",
        ge=0,
    )
    samples_offset: int = setting(
        0,
        "SAMPLES_OFFSET",
        "set at launch: samples of a resumed run beyond those of as many steps of its present batch",
        unit="samples",
    )
    max_skipped: int = in_steps(
        50,
        "MAX_SKIPPED_STEPS",
        "end with an error after this many steps in a row with a gradient that is not finite; 0: never",
    )
    force: bool = setting(
        False,
        "FORCE",
        "start even if the memory estimate says it will not fit, or the data was made with another tokenizer",
    )

    sdpa_math: bool = setting(
        False,
        "SDPA_MATH",
        "allow scaled_dot_product_attention's math kernel on an accelerator for more than 1,024 tokens",
    )

    @property
    def seed_of_weights(self) -> int:
        """What initial weights are drawn with."""
        return self.weights_seed or self.seed

    @property
    def seed_of_data(self) -> int:
        """What samples are shuffled with."""
        return self.data_seed or self.seed

    @property
    def seed_of_dropout(self) -> int:
        """What dropout is drawn with, see ``megads.comm.rng``."""
        return self.dropout_seed or self.seed


class LaunchConfig(Section):
    """How ranks are started."""

    launch_with: Literal["auto", StarterName] = setting(
        "auto",
        "LAUNCH_WITH",
        "launcher of ranks; auto: the machine's, else by scheduler and number of hosts",
        synonyms={"open-mpi": "openmpi", "ompi": "openmpi", "slurm": "srun"},
        instead={
            **dict.fromkeys(("mpirun", "mpiexec", "mpi"), "openmpi, mpich or pals, whose mpiexec it is, or auto"),
            **dict.fromkeys(("ezpz", "ezpz-launch"), "auto"),
            **dict.fromkeys(("python", "none"), "direct"),
            **dict.fromkeys(("accelerate", "torch", "torch.distributed"), "torchrun"),
            **dict.fromkeys(("pbs", "lsf"), "auto, which finds the scheduler's launcher"),
        },
    )
    ranks_per_host: int = setting(
        0, "NGPU_PER_HOST", "ranks on each host; 0: its accelerators, on CPU hosts TP PP SP DP", ge=0
    )
    num_hosts: int = setting(
        0, "NHOSTS", "hosts to use, the first of the allocation; 0: all; the others are spare", ge=0
    )
    fit_hosts: Literal["resume", "always", "never"] = setting(
        "resume",
        "FIT_HOSTS",
        "where GLOBAL_BATCH cannot be shared out over all hosts of the job, use as many as can, the others are spare: "
        "when a run resumes, always, never (refuse to start)",
    )
    hostfile: str = setting("", "HOSTFILE", "one host per line; empty: the scheduler's")
    cpu_bind: str = setting(
        "", "CPU_BIND", "core lists of ranks, e.g. list:0-7:8-15, or none; empty: the machine's cores"
    )
    container: str = setting(
        "",
        "CONTAINER --container",
        "image in which ranks run: a file, a folder, or a name that the runtime knows; empty: none",
    )
    container_runtime: Literal["auto", RuntimeName] = setting(
        "auto",
        "CONTAINER_RUNTIME",
        "what starts it; auto: the machine's, else the first on PATH that starts such an image",
        synonyms={"ch-run": "charliecloud", "enroot": "pyxis"},
    )
    container_python: str = setting("python3", "CONTAINER_PYTHON", "Python of ranks inside")
    container_binds: str = setting(
        "",
        "CONTAINER_BINDS",
        "further paths of the host that ranks see, HOST[:INSIDE[:ro]],...; those of the run are bound without",
    )
    container_args: str = setting("", "CONTAINER_ARGS", "further options of the runtime, e.g. --writable-tmpfs")
    stage_env: bool = setting(
        False, "STAGE_ENV", "copy the Python environment to every host's own disk first; ranks use the copy"
    )
    stage_dir: str = setting("", "STAGE_DIR", "folder for it on every host; empty: megads-UID/stage in /tmp")
    walltime: str = setting("", "WALLTIME --walltime", "hours the run may take, e.g. 6:00:00; empty: the scheduler's")
    allocator: str = setting(
        "auto",
        "ALLOCATOR",
        "PYTORCH_ALLOC_CONF of ranks on accelerators, e.g. max_split_size_mb:512; auto: expandable_segments:True on "
        "NVIDIA; none: torch's default",
    )
    max_restarts: int = setting(
        0, "MAX_RESTARTS --max-restarts", "restarts from the last checkpoint after ranks failed", ge=0
    )
    chain_failures: int = setting(
        2,
        "CHAIN_FAILURES",
        "jobs in a row that save nothing new, after which the next job of a chain does not start; 0: no limit",
        ge=0,
    )
    in_use: Literal["refuse", "wait"] = setting(
        "refuse",
        "IF_IN_USE",
        "when another job holds the run folder: refuse to start, or wait until it has ended and resume",
    )
    timeout_s: float = setting(
        600.0,
        "DIST_TIMEOUT TORCH_DDP_TIMEOUT MEGADS_TIMEOUT_S",
        "longest wait for another rank",
        flags={"--distributed-timeout-minutes": Word(convert=minutes)},
        unit="s",
        gt=0,
        le=1e6,
    )


class RunConfig(Section):
    """Everything that decides a run. Ranks read this from ``<run>/config.yaml`` and nothing else."""

    preset: str = setting("", "MODEL_ARCH", "name of a preset (megads config --presets), or a file such as mine.yaml")
    defaults: Literal["megads", "megatron"] = setting(
        "megads",
        "MEGADS_DEFAULTS",
        "whose defaults apply; megatron unless said otherwise if the command names no preset and "
        "--num-layers, --hidden-size or --num-attention-heads",
        flags={"--megatron-defaults": "megatron"},
    )
    machine: str = setting("", "MACHINE", "facts and defaults in envs/<machine>.yaml; empty: by host name")
    config_file: str = setting(
        "",
        "CONFIG_FILE --config",
        "YAML file of settings, such as a run's config.yaml; above preset and machine, below the environment",
    )
    name: str = setting("", "RUN_NAME", "name of the run folder, runs/<name>; empty: the preset's name")
    dir: str = setting("", "RUN_DIR", "run folder, exactly; empty: runs/<name>")
    model: ModelConfig = ModelConfig()
    parallel: ParallelConfig = ParallelConfig()
    engine: EngineConfig = EngineConfig()
    recompute: RecomputeConfig = RecomputeConfig()
    deepspeed: DeepSpeedConfig = DeepSpeedConfig()
    train: TrainConfig = TrainConfig()
    optim: OptimConfig = OptimConfig()
    lr_finder: LrFinderConfig = LrFinderConfig()
    data: DataConfig = DataConfig()
    tasks: TasksConfig = TasksConfig()
    finetune: FinetuneConfig = FinetuneConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    times: TimesConfig = TimesConfig()
    profile: ProfileConfig = ProfileConfig()
    track: TrackConfig = TrackConfig()
    stability: StabilityConfig = StabilityConfig()
    launch: LaunchConfig = LaunchConfig()

    @property
    def sample_tokens(self) -> int:
        """Tokens of a sample, padding included: every choice of a task is a text of its own."""
        return self.model.seq_length * self.finetune.choices
