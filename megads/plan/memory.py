"""How many parameters a model has, and what a rank needs to train it. Arithmetic; no device."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields

from megads.config.deepspeed.dictionary import effective_zero_stage
from megads.config.optimizers import OPTIMIZERS
from megads.config.rules.advice import LARGEST_ADVICE, Attempt, Change, divisors, each_of, shown
from megads.config.schema import ModelConfig, RunConfig
from megads.config.sizes import data_degree
from megads.config.stages import chunk_steps, schedule_of
from megads.errors import ConfigError
from megads.families.decoder import padded_vocab_size, spec_of
from megads.families.spec import local_size
from megads.plan.conventions import MEGADS, Conventions
from megads.plan.parts.activations import Stage
from megads.plan.parts.engines import held, sections_of
from megads.plan.parts.long_context import chunk_bytes, host_checkpoint_bytes, working_bytes
from megads.plan.parts.stacks import buffer_bytes, head_tokens, recomputing_bytes, saved_bytes
from megads.plan.parts.whole_parameters import whole_state_bytes, whole_work_bytes
from megads.text.plural import plural

GIB = 2**30
PROGRAM_BYTES = 360 * 2**20
"""Of one process: Python, torch and DeepSpeed on a CPU (321 to 359 MiB measured at the end of tiny runs)."""

CUDA_PROGRAM_BYTES = 950 * 2**20
"""The same with a torch built for CUDA, whose libraries are loaded on a CPU too (762 to 946 MiB measured)."""

CONTEXT_BYTES = 512 * 2**20
"""Of a driver's context with torch's kernels on a device; H100 and A100 take about as much. Not measured here."""

WORKSPACE_BYTES = 32 * 2**20
"""Of a handle of cuBLAS from Hopper on, and of hipBLASLt, by torch; a quarter of it before."""

COMMUNICATOR_BYTES = 128 * 2**20
"""Of NCCL, RCCL or oneCCL: 16 channels with two buffers of 4 MiB (NCCL_BUFFSIZE's default). Not measured here."""

DRAWN_BYTES = 3 * 4 * 2**24
"""Initial weights on their way to a device: a block of them, its tiles and its rounded copy."""


@functools.cache
def program_bytes() -> int:
    """Return what one process takes before it holds a model, by the torch that is installed here."""
    for version in range(11, 16):  # of CUDA; torch's own version does not say how it was built
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.distribution(f"nvidia-cudnn-cu{version}")
            return CUDA_PROGRAM_BYTES
    return PROGRAM_BYTES


def _process_bytes(run: RunConfig) -> int:
    """Return what a rank's process takes of the memory that is planned: of its device, or of the host on a CPU.

    On a device: the driver's context, workspaces of the two threads that multiply, and buffers of a communicator for
    every axis of the grid.
    """
    if run.machine == "cpu":
        return program_bytes()
    grid = run.parallel
    axes = sum(degree > 1 for degree in (grid.tensor, grid.sequence, grid.pipeline, grid.data))
    return CONTEXT_BYTES + 2 * WORKSPACE_BYTES + axes * COMMUNICATOR_BYTES


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank at its highest point, the end of a forward pass or the backward pass of a recomputed piece."""

    weights: int
    gradients: int
    optimizer: int
    buffers: int  # of the engine: gradients on their way, and under ZeRO 3 weights that are gathered
    activations: int
    logits: int
    copy: int  # of what is being saved in the background, where it is in the same memory
    program: int

    @property
    def total(self) -> int:
        """Return the sum."""
        return sum(astuple(self))

    def __str__(self) -> str:
        return ", ".join(f"{part.name} {getattr(self, part.name) / GIB:.2f}" for part in fields(self))


def count_parameters(model: ModelConfig) -> int:
    """Return the parameters of the whole model, with the vocabulary padded. ``model`` is derived."""
    return _parameters(model, 1, Stage(0, spec_of(model).num_layers, has_embedding=True, has_head=True))


def count_trained(model: ModelConfig) -> int:
    """Return how many of :func:`count_parameters` are trained; the others are frozen."""
    spec = spec_of(model)
    return sum(each.size for each in spec.parameters() if spec.is_trained(each))


def parameters_of(run: RunConfig, stage: Stage) -> int:
    """Return the parameters of one rank of ``stage``, before ZeRO cuts them."""
    return _parameters(run.model, run.parallel.tensor, stage)


def trained_of(run: RunConfig, stage: Stage) -> int:
    """Return how many of :func:`parameters_of` are trained."""
    is_adapted = spec_of(run.model).is_adapted
    return sum(sections_of(run, stage, trained=True)) if is_adapted else parameters_of(run, stage)


def _parameters(model: ModelConfig, tensor: int, stage: Stage) -> int:
    """Return the parameters of one tensor-parallel rank of a stage."""
    spec = spec_of(model)
    embedding, *layers, output = spec.step_sizes(tensor)
    count = sum(layers[number] for number in stage.numbers)
    count += stage.has_embedding * embedding + stage.has_head * output
    return count - (local_size(spec.copied, tensor) if stage.has_embedding and stage.has_head else 0)


def stages(run: RunConfig) -> Iterator[Stage]:
    """Yield the pipeline stages of a derived ``run``."""
    last, num_layers = run.parallel.pipeline - 1, spec_of(run.model).num_layers
    if not last:
        yield Stage(0, num_layers, has_embedding=True, has_head=True)
        return
    for index, chunks in enumerate(chunk_steps(run)):
        # Of the steps, 0 is the embedding and the last one the output.
        runs = tuple(
            range(max(0, steps.start - 1), max(max(0, steps.start - 1), min(steps.stop - 1, num_layers)))
            for steps in chunks
        )
        yield Stage(
            index,
            sum(map(len, runs)),
            has_embedding=index == 0,
            has_head=index == last,
            first=runs[0].start,
            chunks=runs if len(runs) > 1 else (),
        )


def estimate(run: RunConfig, world_size: int, by: Conventions = MEGADS) -> Memory:
    """Return what a rank of the fullest pipeline stage needs, in bytes. ``run`` is derived.

    Per parameter: fp32 4 weight, 4 gradient, 8 Adam (others as their row says), and offloaded a 4-byte master copy;
    bf16 and fp16 2 weight, 4 gradient (in float32 a sum that each goes into as it comes, else 2
    and 2), 12 master and Adam. Data x seq ranks share the optimizer's part from ZeRO 1 on, gradients from ZeRO 2
    on, weights under ZeRO 3 (arXiv 1910.02054). What is offloaded leaves an accelerator, and
    stays where it is on a host without one, as does the copy that is saved in the background.
    """
    return max((_of_stage(run, world_size, stage, by) for stage in _different(run)), key=lambda memory: memory.total)


def _different(run: RunConfig) -> list[Stage]:
    """Return one stage of all that hold the same, the first, which has most micro-batches in flight.

    Under zb-h1 all: weight gradients that wait can make one in the middle the fullest.
    """
    if schedule_of(run) == "zb-h1":
        return list(stages(run))
    sizes = spec_of(run.model).step_sizes(run.parallel.tensor)[1:-1]
    found: dict[tuple[object, ...], Stage] = {}
    for stage in stages(run):
        held_layers = tuple(tuple(sorted(sizes[each.start : each.stop])) for each in stage.runs)
        found.setdefault((held_layers, stage.has_embedding, stage.has_head), stage)
    return list(found.values())


def stage_memories(run: RunConfig, world_size: int, by: Conventions = MEGADS) -> list[Memory]:
    """Return what a rank of every pipeline stage needs, see :func:`estimate`."""
    return [_of_stage(run, world_size, stage, by) for stage in stages(run)]


def _of_stage(run: RunConfig, world_size: int, stage: Stage, by: Conventions = MEGADS) -> Memory:
    count = _parameters(run.model, run.parallel.tensor, stage)
    if run.finetune.choices > 1:  # every choice is a row of the micro-batch
        rows = run.train.micro_batch * run.finetune.choices
        run = run.model_copy(update={"train": run.train.model_copy(update={"micro_batch": rows})})
    sharers = data_degree(run, world_size) * run.parallel.sequence
    is_whole, moves = OPTIMIZERS[run.optim.optimizer].is_whole, run.machine != "cpu"
    by_engine = held(run, world_size, stage, count, 0 if is_whole else state_bytes(run), by)
    optimizer, buffers = by_engine.optimizer, by_engine.buffers
    if is_whole:
        optimizer += whole_state_bytes(run, stage, sharers * run.parallel.tensor)
    logits = logits_bytes(run, by) if stage.has_head else 0
    # A recomputed piece is worked on when the logits are gone.
    work = recomputing_bytes(run, stage, by) + (working_bytes(run) if stage.layers else 0)
    activations = saved_bytes(run, stage, by) + max(0, work - logits)
    copy = 0 if moves else copied_bytes(run, trained_of(run, stage) // sharers)
    if is_whole:
        buffers += whole_work_bytes(run, stage, sharers * run.parallel.tensor)
    buffers += buffer_bytes(run, stage, by)
    program = _process_bytes(run) if by.library_bytes is None else by.library_bytes
    return Memory(by_engine.weights, by_engine.gradients, optimizer, buffers, activations, logits, copy, program)


def logits_bytes(run: RunConfig, by: Conventions) -> int:
    """Return the bytes of the logits and what is made of them, of a chunk, or of the scores of a task's head."""
    if run.model.num_classes:
        return by.logit_bytes * run.train.micro_batch * run.model.num_classes
    if run.recompute.loss_chunk:
        return chunk_bytes(run)
    split = run.parallel.tensor if by.splits_logits else 1
    return by.logit_bytes * head_tokens(run) * padded_vocab_size(run.model) // split


def state_bytes(run: RunConfig) -> int:
    """Return the bytes of the optimizer's state for a parameter, without a float32 master copy."""
    return round(4 * OPTIMIZERS[run.optim.optimizer].floats)


def copied_bytes(run: RunConfig, count: int) -> int:
    """Return the host memory that a rank keeps to save its ``count`` parameters in the background.

    A float32 weight and the optimizer's state of each; for every ZeRO stage, ranks share them.
    """
    if not run.checkpoint.in_background or not run.checkpoint.save_interval:
        return 0
    return count * (4 + (state_bytes(run) if run.checkpoint.save_optim else 0))


def host_bytes(run: RunConfig, world_size: int) -> int:
    """Return what a rank of an accelerator needs of its host's memory, on the stage that needs most.

    ``run`` is derived. Counted are the program, rows of weights while they are drawn, what is offloaded to the host,
    and the copy that is saved in the background.
    """
    sharers = data_degree(run, world_size) * run.parallel.sequence
    counts = [trained_of(run, stage) for stage in stages(run)]
    share = max(counts) // (sharers if effective_zero_stage(run) else 1)
    needed = program_bytes() + DRAWN_BYTES + copied_bytes(run, max(counts) // sharers)
    if run.deepspeed.offload_optimizer == "cpu":
        needed += share * (4 + 4 + state_bytes(run))  # master weights and gradients
    needed += max(
        host_checkpoint_bytes(run, stage.layers, min(run.train.grad_acc_steps, run.parallel.pipeline - stage.index))
        for stage in stages(run)
    )
    if run.deepspeed.offload_params == "cpu":
        needed += share * (2 if run.train.dtype != "fp32" else 4)
    return needed


def check_fits(
    run: RunConfig, world_size: int, ranks_on_host: int, available_bytes: int, host: str, attempt: Attempt
) -> None:
    """Refuse a run that needs more memory than its host has, unless ``train.force`` is on.

    Args:
        ranks_on_host: ranks that share ``available_bytes``.
        available_bytes: of the host, or of one device with ``ranks_on_host`` 1.

    Raises:
        ConfigError: the estimate, and the settings that would fit.
    """
    memory = estimate(run, world_size)
    needed = memory.total * ranks_on_host
    if run.train.force or needed <= available_bytes:
        return
    advice = _would_fit(run, world_size, ranks_on_host, available_bytes, attempt) or "use a smaller preset such as tiny"
    ranks = f"{plural(ranks_on_host, 'rank')} that need{'s' if ranks_on_host == 1 else ''}"
    raise ConfigError(
        f"{host} has {available_bytes / GIB:.2f} GiB of memory for {ranks} "
        f"{needed / GIB:.2f} GiB; GiB per rank: {memory}; {advice}; "
        f"--set train.force=true starts anyway"
    )


def check_device(
    run: RunConfig,
    world_size: int,
    machine: str,
    device_gib: float,
    attempt: Attempt,
    *,
    refuse: bool = True,
    kind: str = "",
) -> str:
    """Refuse a run whose weights, gradients and optimizer alone exceed a device's memory, unless ``train.force`` is on.

    Args:
        device_gib: memory of one rank's device; 0: not known.
        refuse: whether to; else it is a note.
        kind: which of the machine's devices that is, for the message; empty: it has one kind.

    Returns:
        A note where the whole estimate, with activations, exceeds it; else nothing.

    Raises:
        ConfigError: the estimate, and the settings that would fit.
    """
    memory, available = estimate(run, world_size), int(device_gib * GIB)
    if not available or run.train.force or memory.total <= available:
        return ""
    text = (
        f"machine {machine} has {device_gib:g} GiB{f' ({kind})' if kind else ''} per device, and each rank needs about "
        f"{memory.total / GIB:.1f} GiB; GiB per rank: {memory}; "
        f"{_would_fit(run, world_size, 1, available, attempt) or 'use more hosts or a smaller preset'}"
    )
    if memory.weights + memory.gradients + memory.optimizer > available and refuse:
        raise ConfigError(f"{text}; FORCE=1 starts anyway")
    return text


def host_problem(run: RunConfig, needed: int, ranks_on_host: int, available: int, host: str) -> str:
    """Return why ``ranks_on_host`` ranks, of ``needed`` bytes each, do not fit a host's memory; empty where they do."""
    if needed * ranks_on_host <= available:
        return ""
    less = [
        text
        for is_on, text in (
            (run.deepspeed.offload_optimizer == "cpu", "OFFLOAD_OPTIMIZER=none"),
            (run.deepspeed.offload_params == "cpu", "OFFLOAD_PARAMS=none"),
            (run.checkpoint.in_background, "SAVE_IN_BACKGROUND=0"),
        )
        if is_on
    ]
    return (
        f"{host} has {available / GIB:.2f} GiB of host memory for {plural(ranks_on_host, 'rank')} that need about "
        f"{needed / GIB:.2f} GiB each; use {' or '.join([*less, 'more hosts'])}; FORCE=1 starts anyway"
    )


def _would_fit(run: RunConfig, world_size: int, ranks_on_host: int, available: int, attempt: Attempt) -> str:
    """Return ``A=1 or B=2 would fit``, nothing where no change is found; for ``ranks_on_host`` 1 on a device."""

    def fits(change: Change) -> bool:
        layout = attempt.derive(change)
        if layout is None or layout.problem is not None:
            return False
        ranks = layout.ranks_per_host if ranks_on_host > 1 or layout.run.machine == "cpu" else 1
        return estimate(layout.run, layout.world_size).total * ranks <= available

    advice = [shown(change, attempt.origins) for change in _advice(run, world_size, fits)]
    return f"{' or '.join(advice)} would fit" if advice else ""


MOST_ADVICE = 6


def _advice(run: RunConfig, world_size: int, fits: Callable[[Change], bool]) -> Iterator[Change]:
    """Yield changes of one setting that fit, the least harmful first: what only costs time, then what changes the run.

    Of a setting the smallest change is named.
    """
    grid, model, train = run.parallel, run.model, run.train
    larger = [each for each in divisors(world_size) if each > 1]
    smaller = [size for size in divisors(train.micro_batch * train.grad_acc_steps) if size < train.micro_batch]
    found = 0
    for candidates in (
        each_of("checkpoint.in_background", [False] if run.checkpoint.in_background else []),
        [{"parallel.scatter_norms": True}] if grid.tensor > 1 and not grid.scatter_norms else [],
        each_of("recompute.granularity", ["selective", "full"] if run.recompute.granularity == "none" else []),
        each_of("parallel.zero_stage", range(grid.zero_stage + 1, 4)),
        each_of("parallel.tensor", (each for each in larger if each > grid.tensor)),
        each_of("parallel.sequence", (each for each in larger if each > grid.sequence)),
        each_of("parallel.pipeline", (each for each in larger if each > grid.pipeline)),
        each_of("train.micro_batch", reversed(smaller)),
        each_of("model.seq_length", _halves(model.seq_length)),
    ):
        change = next(filter(fits, candidates), None)
        if change is not None and found < MOST_ADVICE:
            found += 1
            yield change
    layers = _most(lambda count: fits({"model.num_layers": count}), min(model.num_layers - 1, LARGEST_ADVICE))
    if layers:
        yield {"model.num_layers": layers}


def _most(holds: Callable[[int], bool], largest: int) -> int:
    """Return the largest number up to ``largest`` for which ``holds``, which small ones do if any does; else 0."""
    low, high = 0, largest
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _halves(value: int) -> Sequence[int]:
    return [value >> shift for shift in range(1, 64) if value >> shift >= 128]
