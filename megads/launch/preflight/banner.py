"""What a run will do, on one screen, before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from megads.config.estimate.memory import Memory, count_parameters, stages
from megads.config.rules.remarks import bubble, query_heads
from megads.config.schedule.batches import planned_samples
from megads.config.schema import RunConfig
from megads.config.sources.megatron_defaults import MEGATRON
from megads.data.sources.epochs import Share
from megads.families.decoder import padded_vocab_size
from megads.launch.preflight.banner_data import corpora_lines, ramp_line, skips_line
from megads.launch.schedulers.allocation import Allocation
from megads.text.plural import plural
from megads.text.units import count, size

RANDOM = "random weights"  # how the start of a run without a checkpoint begins
DEMO = "demo corpus: this Python's standard library"


def banner(
    run: RunConfig,
    allocation: Allocation,
    memory: Memory,
    available: int,
    folder: Path,
    shares: Sequence[Share] = (),
    start: str = "",
    disk: str = "",
) -> str:
    """Return the lines that say what will run.

    Args:
        run: derived.
        allocation: the hosts.
        memory: of a rank.
        available: bytes on a host, 0 if not known.
        folder: of the run.
        shares: corpora of the training data, empty if not known.
        start: with which weights it begins.
        disk: what its checkpoints take.
    """
    model, train, parallel = run.model, run.train, run.parallel
    samples = planned_samples(run)
    hosts = plural(len(allocation.hosts), "host")
    by_megatron = run.defaults == MEGATRON
    total = memory.total * allocation.ranks_per_host
    fits = f", {size(total)} per host of {size(available)} free" if available else ""
    rows = [
        ("run", f"{run.name} in {folder}, machine {run.machine}"),
        ("defaults", "Megatron-LM's; `megads config` with the same options lists them" if by_megatron else ""),
        ("init" if start.startswith(RANDOM) else "start", start),
        (
            "layout",
            f"{plural(allocation.world_size, 'rank')} on {hosts}: TP={parallel.tensor} PP={parallel.pipeline} "
            f"SP={parallel.sequence} DP={parallel.data} ZeRO={parallel.zero_stage}",
        ),
        *_layout_rows(run),
        *_size_rows(run),
        ("ramp-up", ramp_line(run)),
        (
            "train",
            f"{plural(train.train_iters, 'iteration')}, {count(samples * model.seq_length)}"
            f" tokens; {run.optim.optimizer}, lr {run.optim.lr:g} {run.optim.lr_decay_style}"
            if not train.evaluate_only
            else f"no step: evaluates {train.eval_iters} global batches and ends (EVALUATE_ONLY, TRAIN_ITERS=0)",
        ),
        ("skips", skips_line(run)),
        *_data_rows(run, shares),
        ("memory", f"{_memory_line(memory)}{fits}"),
        ("disk", disk),
    ]
    return "\n".join(f"{name:8} {text}" for name, text in rows if text)


def _size_rows(run: RunConfig) -> Iterator[tuple[str, str]]:
    model, train = run.model, run.train
    yield (
        "model",
        f"{model.family}, {plural(model.num_layers, 'layer')}, hidden {model.hidden_size}, heads {model.num_heads}"
        f" (kv {model.num_kv_heads}), ffn {model.ffn_hidden_size}, vocabulary {model.vocab_size}"
        f" padded to {padded_vocab_size(model)}: {count(count_parameters(model))} parameters, {train.dtype}",
    )
    yield (
        "batch",
        f"{plural(train.global_batch, 'sample')} = micro {train.micro_batch} x accumulation {train.grad_acc_steps}"
        f" x DP {run.parallel.data}; {plural(model.seq_length, 'token')} per sample,"
        f" {count(train.global_batch * model.seq_length)} tokens per step",
    )


def _memory_line(memory: Memory) -> str:
    copy = f" copy {size(memory.copy)}," if memory.copy else ""
    return (
        f"about {size(memory.total)} per rank (weights {size(memory.weights)}, gradients"
        f" {size(memory.gradients)}, optimizer {size(memory.optimizer)}, activations"
        f" {size(memory.activations + memory.logits)}, buffers {size(memory.buffers)},{copy}"
        f" program {size(memory.program)})"
    )


def _data_rows(run: RunConfig, shares: Sequence[Share]) -> Iterator[tuple[str, str]]:
    given = run.data.file_list or run.data.path
    name = Path(run.data.file_list).name if run.data.file_list else given or DEMO
    readers = run.data.num_workers
    reading = f"{plural(readers, 'prefetch thread')} per rank" if readers else "no prefetch threads"
    yield "data", f"{name}; {reading}"
    for line in corpora_lines(shares) if shares and given else ():
        yield "", line


def _layout_rows(run: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield a line for each part of the layout that is not the plain one."""
    grid, again, deepspeed = run.parallel, run.recompute, run.deepspeed
    if grid.pipeline > 1:
        layers = "+".join(str(stage.layers) for stage in stages(run))
        yield "stages", f"PP={grid.pipeline}: {layers} layers; pipeline bubble {bubble(run):.0%} of a step"
    if grid.sequence > 1:
        heads = query_heads(run)
        few = f"{heads[-1]} or " if heads[0] != heads[-1] else ""
        tokens = run.model.seq_length // grid.sequence
        yield (
            "sequence",
            f"SP={grid.sequence}: {plural(tokens, 'token')} per rank; {few}{plural(heads[0], 'query head')}"
            " during attention",
        )
    if grid.scatter_norms and grid.tensor > 1:
        yield "norms", f"scattered over TP={grid.tensor}, with dropout and residual"
    if again.granularity != "none":
        what = {"selective": "the attention core"}.get(again.granularity) or (
            f"every layer, in groups of {again.num_layers}"
            if again.method == "uniform"
            else f"the first {plural(again.num_layers, 'layer')} of each stage"
        )
        kept = {
            "split over TP": again.partition_activations,
            "in host memory": again.cpu_checkpointing,
            "in one buffer": again.contiguous_memory,
        }
        inputs = ", ".join(words for words, on in kept.items() if on)
        yield (
            "again",
            f"computed in the backward pass: {what}, by {again.engine}"
            + (f"; inputs are kept {inputs}" if inputs else ""),
        )
    places = {"optimizer": deepspeed.offload_optimizer, "weights": deepspeed.offload_params}
    moved = [f"{what} to {place}" for what, place in places.items() if place != "none"]
    if moved:
        yield "offload", ", ".join(moved)
    if deepspeed.hpz_partition_size > 1:
        yield "hpZ", f"a second copy of the weights over every {deepspeed.hpz_partition_size} ranks of DP x SP"
