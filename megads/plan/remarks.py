"""What a run may do but seldom wants: lines worth showing before it starts."""

from __future__ import annotations

from collections.abc import Iterator

from megads.config.deepspeed.dictionary import effective_zero_stage, is_bf16_optimizer
from megads.config.engine_choice import choose
from megads.config.optimizers import OPTIMIZERS
from megads.config.pipeline.actions import warm_up
from megads.config.rules.advice import divisors, nearest, put
from megads.config.schedule.batches import BatchSchedule, SkipRanges
from megads.config.schedule.rates import COUNTED, INFINITE, WSD
from megads.config.schema import RunConfig
from megads.config.settings.profile import profiled_steps
from megads.config.sizes import data_degree, heads_of_rank
from megads.config.sources.megatron_defaults import DEFAULTS, MEGATRON
from megads.config.stages import virtual_stages
from megads.config.tree import env_name, fields, value_of
from megads.families.table import FAMILIES
from megads.plan.pipeline import idle_of

LARGEST_BUBBLE = 0.2


def remarks(run: RunConfig, world_size: int) -> tuple[str, ...]:
    """Return a line for every wasteful or ineffective choice of a derived ``run``."""
    return tuple(
        [
            *_pipeline(run),
            *_sequence(run),
            *_without_effect(run, world_size),
            *_precision(run),
            *_optimizer(run),
            *_unread(run),
            *_generators(run),
            *_offload(run),
            *_host_checkpoints(run),
            *_length(run),
            *_data(run),
            *_profile(run),
            *_tasks(run),
        ]
    )


def _profile(run: RunConfig) -> Iterator[str]:
    steps, last = profiled_steps(run.profile), run.train.train_iters
    if steps and steps[0] > last:
        yield f"PROFILE traces from step {steps[0]} on, and TRAIN_ITERS={last}: no trace will be written"
    if run.profile.flops and run.profile.flops_step > last:
        yield f"FLOPS_PROFILE_STEP={run.profile.flops_step} is after TRAIN_ITERS={last}: nothing will be counted"


def _tasks(run: RunConfig) -> Iterator[str]:
    interval, last = run.tasks.interval, run.train.train_iters
    if interval > last and not run.train.evaluate_only:
        yield f"EVAL_TASKS_INTERVAL={interval} is more than TRAIN_ITERS={last}: the tasks are scored at the end only"


def _pipeline(run: RunConfig) -> Iterator[str]:
    stages, steps = run.parallel.pipeline, run.train.grad_acc_steps
    chunks = virtual_stages(run)
    whole = steps // stages * stages
    if chunks > 1 and 0 < whole < steps:
        held, least = (warm_up("interleaved", stages, chunks, each, 0) + 1 for each in (steps, whole))
        yield (
            f"GRAD_ACC_STEPS={steps} is not a multiple of PP={stages}: with VIRTUAL_STAGES={chunks} the first stage "
            f"keeps {held} chunks of micro-batches, {least} with GRAD_ACC_STEPS={whole}"
        )
    if stages == 1 or idle_of(run) <= LARGEST_BUBBLE:
        return
    fewest = steps + 1
    while idle_of(put(run, {"train.grad_acc_steps": fewest})) > LARGEST_BUBBLE + 1e-9:
        fewest += 1
    idle = " and some stages are always idle" if steps < stages else ""
    yield (
        f"GRAD_ACC_STEPS={steps} micro-batches for PP={stages} stages: each is idle for {idle_of(run):.0%} of "
        f"a step{idle}; "
        f"GRAD_ACC_STEPS={fewest} or more would bring it to {LARGEST_BUBBLE:.0%}"
    )


def query_heads(run: RunConfig) -> list[int]:
    """Return how many query heads the sequence ranks compute, the most first."""
    shares = heads_of_rank(run.model, run.parallel.tensor, run.parallel.sequence)
    return sorted((share.queries for share in shares), reverse=True)


def _sequence(run: RunConfig) -> Iterator[str]:
    degree, heads = run.parallel.sequence, query_heads(run)
    if heads[0] == heads[-1]:
        return
    even = [each for each in divisors(sum(heads)) if run.model.seq_length % each == 0]
    yield (
        f"SP={degree} ranks share {sum(heads)} query heads unevenly: attention waits for those with {heads[0]}; "
        f"SP={nearest(degree, even)[0]} would be even"
    )


def _without_effect(run: RunConfig, world_size: int) -> Iterator[str]:
    grid, size = run.parallel, run.deepspeed.hpz_partition_size
    if grid.scatter_norms and grid.tensor == 1:
        yield "SCATTER_NORMS=1 has no effect with TP=1: there is nothing to scatter over"
    if grid.tp_overlap > 1 and grid.tensor == 1:
        yield f"TP_OVERLAP={grid.tp_overlap} has no effect with TP=1: no layer is split"
    if grid.ddp_impl == "torch" and choose(run, world_size).kind == "deepspeed":
        if effective_zero_stage(run) == 0:
            yield "DDP_IMPL=torch has no effect with ZERO_STAGE=0: DeepSpeed sums gradients after the backward pass"
        elif grid.pipeline > 1:
            yield f"DDP_IMPL=torch has no effect with PP={grid.pipeline}: a pipeline sums gradients at its end"
        elif is_bf16_optimizer(run):
            yield (
                f"DDP_IMPL=torch has no effect with DTYPE=bf16 and ZERO_STAGE={grid.zero_stage}: DeepSpeed's "
                f"BF16_Optimizer sums gradients after the backward pass; ZERO_STAGE=2 sums them while it runs"
            )
    if run.deepspeed.wall_clock_breakdown and grid.pipeline > 1:
        yield f"WALL_CLOCK_BREAKDOWN=1 has no effect with PP={grid.pipeline}: its timers do not work there"
    # Ranks of DP x SP are TP apart, and a host's are neighbours.
    if size > 1 and size * grid.tensor > run.launch.ranks_per_host:
        yield (
            f"ZERO_HPZ_PARTITION_SIZE={size} (x TP={grid.tensor}) reaches beyond the {run.launch.ranks_per_host} ranks "
            f"of a host: weights are gathered between hosts"
        )
    elif size > 1 and size == data_degree(run, world_size) * grid.sequence:
        yield f"ZERO_HPZ_PARTITION_SIZE={size} is all of DP x SP: the second copy would be the first one"


def _precision(run: RunConfig) -> Iterator[str]:
    dtype, deepspeed, steps = run.train.dtype, run.deepspeed, run.train.grad_acc_steps
    if run.parallel.zero_stage < effective_zero_stage(run):
        yield f"ZERO_STAGE=0 with DTYPE={dtype} runs as ZeRO 1 under DeepSpeed, which computes the same"
    if deepspeed.grad_accum_dtype != "fp32" and steps > 1:
        yield f"GRAD_ACCUM_DTYPE={deepspeed.grad_accum_dtype} rounds at each of GRAD_ACC_STEPS={steps} sums"
    if deepspeed.communication_data_type != "fp32":
        yield f"COMMUNICATION_DATA_TYPE={deepspeed.communication_data_type} rounds gradients, more with more ranks"


def _optimizer(run: RunConfig) -> Iterator[str]:
    """A decay is reported, not refused: what was asked for is what is done, and it may be asked for to compare."""
    optim, row = run.optim, OPTIMIZERS[run.optim.optimizer]
    if row.is_averaged and optim.lr_decay_style != "constant":
        yield (
            f"OPT={row.name} averages iterates instead of a decay, and LR_DECAY_STYLE={optim.lr_decay_style} decays as "
            f"well; use LR_DECAY_STYLE=constant"
        )
    if row.name == "adam" and optim.weight_decay:
        yield (
            f"OPT=adam adds WEIGHT_DECAY={optim.weight_decay:g} to the gradient, where the moments scale it; what "
            f"Megatron-LM calls adam is OPT=adamw"
        )
    if row.is_whole and run.deepspeed.offload_optimizer != "none" and run.machine != "cpu":
        yield (
            f"OFFLOAD_OPTIMIZER={run.deepspeed.offload_optimizer} moves the float32 weights; OPT={row.name} steps "
            f"whole parameters, and keeps its state on the device"
        )


def _unread(run: RunConfig) -> Iterator[str]:
    """Settings that were given and that this run never looks at."""
    optim, row = run.optim, OPTIMIZERS[run.optim.optimizer]
    style = optim.lr_decay_style
    others = {name for each in OPTIMIZERS.values() for name in each.settings} - set(row.settings)
    of_optim = [name for name in fields() if name.startswith("optim.")]
    scales = [name for name in of_optim if "loss_scale" in name]
    samples = FAMILIES[run.model.family].samples
    usual = DEFAULTS if run.defaults == MEGATRON else {}
    of_pairs, of_masks = ["model.token_types", "model.binary_head"], ["data.mask_prob", "data.short_seq_prob"]
    of_retro = [] if samples == "retro" else [name for name in fields() if name.startswith("model.retro_")]
    of_family = {"bert": [], "t5": of_pairs}.get(samples, of_pairs + of_masks)
    never = {
        f"MODEL_FAMILY={run.model.family}": [*of_family, *of_retro],
        **_unread_positions(run),
        f"OPT={row.name}": [name for name in of_optim if env_name(name) in others],
        f"DTYPE={run.train.dtype}": scales if run.train.dtype != "fp16" else [],
        "ON_SPIKE=none": [f"stability.spike_{what}" for what in ("factor", "window", "after")],
        f"LR_DECAY_STYLE={style}": [
            *([] if style in INFINITE else [name for name in of_optim if name.startswith("optim.lr_constant_")]),
            *([] if style == "infinite-inverse-square-root" else ["optim.lr_timescale"]),
            *([] if style == WSD else ["optim.lr_cooldown_style"]),
        ],
        "WEIGHT_DECAY_INCR_STYLE=constant": [f"optim.weight_decay_{unit}" for unit in COUNTED],
    }
    if run.stability.on_spike != "none":
        del never["ON_SPIKE=none"]
    if optim.weight_decay_incr_style != "constant":
        del never["WEIGHT_DECAY_INCR_STYLE=constant"]
    for why, names in never.items():
        given = [name for name in names if value_of(run, name) not in (fields()[name].default, usual.get(name))]
        if given:
            shown = ", ".join(f"{env_name(name)}={value_of(run, name)}" for name in given)
            yield f"{shown}: ignored with {why}"


def _unread_positions(run: RunConfig) -> dict[str, list[str]]:
    """Return the settings of the kinds of positions that the run does not have, by why."""
    model, scales = run.model, ["rope_scaling_factor", "rope_low_freq_factor", "rope_high_freq_factor"]
    scales.append("rope_original_positions")
    kind, of_relative = model.position_embedding, ["relative_buckets", "relative_distance"]
    others = {
        "relative": ["rope_theta", "rope_scaling", *scales],
        "learned": [*of_relative, "rope_theta", "rope_scaling", *scales],
        "rope": of_relative,
    }
    found = {f"POSITION_EMBEDDING={kind}": others[kind]}
    if kind == "rope":
        without = {"none": scales, "linear": scales[1:], "llama3": []}
        found[f"ROPE_SCALING={model.rope_scaling}"] = without[model.rope_scaling]
    return {why: [f"model.{name}" for name in names] for why, names in found.items()}


def _generators(run: RunConfig) -> Iterator[str]:
    is_on = {"NO_LOAD_RNG=1": run.checkpoint.load_rng, "NO_SAVE_RNG=1": run.checkpoint.save_rng}
    if given := [name for name, is_used in is_on.items() if not is_used]:
        verb = "has" if len(given) == 1 else "have"
        yield (
            f"{' and '.join(given)} {verb} no effect: dropout follows from the seed and the position in the data, no "
            "generator has a state to save or load; DROPOUT_SEED changes what is drawn"
        )


def _host_checkpoints(run: RunConfig) -> Iterator[str]:
    if run.recompute.cpu_checkpointing and run.machine == "cpu":
        yield "CPU_CHECKPOINTING=1 moves nothing on a CPU: inputs of recomputed layers are in host memory already"


def _offload(run: RunConfig) -> Iterator[str]:
    places = {"OFFLOAD_OPTIMIZER": run.deepspeed.offload_optimizer, "OFFLOAD_PARAMS": run.deepspeed.offload_params}
    for name, place in places.items():
        if place == "cpu" and run.machine == "cpu":
            yield f"{name}=cpu saves nothing on a host without accelerators"


def _length(run: RunConfig) -> Iterator[str]:
    train, schedule = run.train, BatchSchedule.of(run)
    if train.evaluate_only:
        return
    if schedule.is_ramp and schedule.ramp_iterations >= train.train_iters:
        yield (
            f"RAMPUP_BATCH_SIZE={train.rampup_batch_size!r} reaches GLOBAL_BATCH={train.global_batch} after "
            f"{schedule.ramp_iterations} iterations, and TRAIN_ITERS={train.train_iters} ends before that"
        )
    late = [each for each in SkipRanges.parse(train.skip_iterations).ranges if each[1] > train.train_iters]
    if late:
        yield (
            f"SKIP_TRAIN_ITERATION_RANGE: {late[0][0]}-{late[0][1]} reaches beyond the last of "
            f"TRAIN_ITERS={train.train_iters} iterations"
        )


def _data(run: RunConfig) -> Iterator[str]:
    data, train = run.data, run.train
    if data.tokenizer_model and not (data.file_list or data.path or run.finetune.task):
        yield (
            f"TOKENIZER_MODEL={data.tokenizer_model} without data: the demo corpus has ids of its own tokenizer, which "
            "mean something else in this one; set DATA_FILE_LIST or DATA_PATH"
        )
    valid, test = data.held_out("valid"), data.held_out("test")
    if valid.text and not (train.eval_interval and train.eval_iters):
        name = "EVAL_ITERS" if train.eval_interval else "EVAL_INTERVAL"
        yield f"{valid.variable}={valid.text} is not read with {name}=0"
    if test.text and not train.eval_iters:
        yield f"{test.variable}={test.text} is not read with EVAL_ITERS=0"
