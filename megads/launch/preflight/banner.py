"""What a run will do, on one screen, before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from megads.config.data_stages.views import steps_vary, tokens_until
from megads.config.engine_choice import choose
from megads.config.schedule.batches import BatchSchedule, SkipRanges, samples_at_end
from megads.config.schedule.rates import Schedule
from megads.config.schema import RunConfig
from megads.config.sources.megatron_defaults import MEGATRON
from megads.config.stages import SPLIT_RANK, schedule_of, virtual_stages
from megads.data.chat.samples import read_chats
from megads.data.chat.samples import summary as chat_summary
from megads.data.datasets import read_held_out, read_shards, uses_demo
from megads.data.samples.retro.queried import is_retro, neighbors_line
from megads.data.sources.epochs import Share
from megads.data.sources.file_list import Shard, repeated
from megads.data.stages.shards import stages_with_files
from megads.data.tasks.task import read_task
from megads.families.decoder import padded_vocab_size
from megads.families.lora import parts_of
from megads.families.table import described_by
from megads.launch.preflight.data_stages import stage_rows
from megads.launch.schedulers.allocation import Allocation
from megads.plan.errors import memory_error
from megads.plan.memory import Memory, count_parameters, count_trained, stages
from megads.plan.pipeline import idle_of, shorter, uneven_idle
from megads.plan.remarks import query_heads
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
    step: str = "",
    link: str = "",
) -> str:
    """Return the lines that say what will run.

    Args:
        available: bytes on a host, 0 if not known.
        shares: corpora of the training data, empty if not known.
        step: what is predicted of a step's time, empty if nothing is.
        link: of a chain of jobs, and what changed since the last one; empty for the first.
    """
    train, parallel = run.train, run.parallel
    samples = samples_at_end(run)
    hosts = plural(len(allocation.hosts), "host")
    by_megatron = run.defaults == MEGATRON
    total = memory.total * allocation.ranks_per_host
    fits = f", {size(total)} per host of {size(available)} free" if available else ""
    rows = [
        ("run", f"{run.name} in {folder}, machine {run.machine}"),
        ("defaults", "Megatron-LM's; `megads config` with the same options lists them" if by_megatron else ""),
        ("init" if start.startswith(RANDOM) else "start", start),
        ("link", link),
        (
            "layout",
            f"{plural(allocation.world_size, 'rank')} on {hosts}: TP={parallel.tensor} PP={parallel.pipeline} "
            f"SP={parallel.sequence} DP={parallel.data} ZeRO={parallel.zero_stage}",
        ),
        ("image", run.launch.container),
        ("engine", str(choose(run, allocation.world_size))),
        *_layout_rows(run),
        *_size_rows(run),
        ("ramp-up", ramp_line(run)),
        (
            "train",
            f"{plural(train.train_iters, 'iteration')}{_of_plan(run)}, {count(tokens_until(run, samples))}"
            f" tokens; {run.optim.optimizer}, {_rate_words(run)}"
            if not train.evaluate_only
            else f"no step: evaluates {train.eval_iters} global batches and ends (EVALUATE_ONLY, TRAIN_ITERS=0)",
        ),
        ("skips", skips_line(run)),
        *_data_rows(run, shares),
        *stage_rows(run),
        ("memory", f"{_memory_line(memory)}{fits}{_memory_error(run)}"),
        ("step", step),
        ("disk", disk),
    ]
    return "\n".join(f"{name:8} {text}" for name, text in rows if text)


def _size_rows(run: RunConfig) -> Iterator[tuple[str, str]]:
    model, train = run.model, run.train
    yield (
        "model",
        f"{described_by(model)}, {plural(model.num_layers, 'layer')}, hidden {model.hidden_size}, "
        f"heads {model.num_heads} (kv {model.num_kv_heads}), ffn {model.ffn_hidden_size}, vocabulary {model.vocab_size}"
        f" padded to {padded_vocab_size(model)}: {count(count_parameters(model))} parameters, {train.dtype}",
    )
    if model.lora_rank:
        trained = count_trained(model)
        yield (
            "adapters",
            f"rank {model.lora_rank}, alpha {model.lora_alpha:g}, of {', '.join(parts_of(model.lora_targets))}: "
            f"{count(trained)} of {count(count_parameters(model))} parameters are trained "
            f"({100 * trained / count_parameters(model):.2g} %), the others are frozen",
        )
    yield (
        "batch",
        f"{plural(train.global_batch, 'sample')} = micro {train.micro_batch} x accumulation {train.grad_acc_steps}"
        f" x DP {run.parallel.data}; {_sample_words(run)}",
    )


def _memory_line(memory: Memory) -> str:
    copy = f" copy {size(memory.copy)}," if memory.copy else ""
    return (
        f"about {size(memory.total)} per rank (weights {size(memory.weights)}, gradients"
        f" {size(memory.gradients)}, optimizer {size(memory.optimizer)}, activations"
        f" {size(memory.activations + memory.logits)}, buffers {size(memory.buffers)},{copy}"
        f" program {size(memory.program)})"
    )


def _memory_error(run: RunConfig) -> str:
    """Return how far off such estimates were; nothing is published of a CPU's memory."""
    if run.machine == "cpu":
        return ""
    error = memory_error()
    return f"; on {error.what} off by {error.mean:.0%} on average, {error.p95:.0%} in 95 of 100"


def _data_rows(run: RunConfig, shares: Sequence[Share]) -> Iterator[tuple[str, str]]:
    if run.finetune.task:
        yield from _task_rows(run)
        return
    given = run.data.file_list or run.data.path
    name = Path(run.data.file_list).name if run.data.file_list else given or DEMO
    name = "by stage" if run.data.stage_table and not uses_demo(run) else name
    readers = run.data.num_workers
    reading = f"{plural(readers, 'prefetch thread')} per rank" if readers else "no prefetch threads"
    yield "data", f"{name}; {reading}"
    for line in corpora_lines(shares) if shares and given else ():
        yield "", line
    if is_retro(run):
        yield "retro", neighbors_line(run)


def _task_rows(run: RunConfig) -> Iterator[tuple[str, str]]:
    if run.finetune.is_chat:
        yield from _chat_rows(run)
        return
    task = read_task(run.finetune)
    valid = sum(len(file.examples) for file in task.valid)
    what = f"{len(task.classes)} classes" if task.classes else f"{task.choices} choices"
    scored = f"scored on {plural(valid, 'example')} of {plural(len(task.valid), 'file')}"
    trained = f"{plural(task.num_train, 'example')} of {plural(len(task.train), 'file')}"
    predicted = sum(len(file.examples) for file in task.test)
    more = f"; predicts {plural(predicted, 'example')} of {plural(len(task.test), 'file')}" if task.test else ""
    yield "task", f"{task.name}, {what}: {trained}, {plural(run.finetune.epochs, 'epoch')}; {scored}{more}"


def _chat_rows(run: RunConfig) -> Iterator[tuple[str, str]]:
    data = read_chats(run)
    shares = data.weights or tuple(float(len(file)) for file in data.train)
    scored = f"; scored on {plural(sum(map(len, data.valid)), 'chat')} of {plural(len(data.valid), 'file')}"
    yield "task", f"chat, {chat_summary(run, data)}{scored if data.valid else ''}"
    if data.weights:
        for file, share in zip(data.train, shares, strict=True):
            yield "", f"{share / sum(shares):6.1%} {Path(file.path).name}, {plural(len(file), 'chat')}"


def _layout_rows(run: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield a line for each part of the layout that is not the plain one."""
    grid, again, deepspeed = run.parallel, run.recompute, run.deepspeed
    if grid.pipeline > 1:
        yield "stages", _stages_line(run)
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
    if grid.tp_overlap > 1 and grid.tensor > 1:
        yield "tp overlap", f"products and collectives of split layers in {grid.tp_overlap} chunks"
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
    cut = [f"loss in chunks of {plural(again.loss_chunk, 'token')}"] if again.loss_chunk else []
    cut += [f"MLP in {again.mlp_tiles} tiles"] if again.mlp_tiles > 1 else []
    if cut:
        yield "parts", ", ".join(cut)
    places = {"optimizer": deepspeed.offload_optimizer, "weights": deepspeed.offload_params}
    moved = [f"{what} to {place}" for what, place in places.items() if place != "none"]
    if moved:
        yield "offload", ", ".join(moved)
    if deepspeed.hpz_partition_size > 1:
        yield "hpZ", f"a second copy of the weights over every {deepspeed.hpz_partition_size} ranks of DP x SP"


def _stages_line(run: RunConfig) -> str:
    """Return the layers of each stage, those of its chunks apart, and how long its schedule leaves it idle."""
    grid = run.parallel
    layers = "+".join("/".join(str(len(numbers)) for numbers in stage.runs) for stage in stages(run))
    chunks = f", {virtual_stages(run)} chunks of each" if virtual_stages(run) > 1 else ""
    rank = SPLIT_RANK.fullmatch(grid.pipeline_split)
    split = f", the decoder's from stage {rank[1]} on (split rank)" if rank else ""
    batches = plural(run.train.grad_acc_steps, "micro-batch")
    idle, uneven = f"{idle_of(run):.0%}", f"{uneven_idle(run):.0%}"
    words = [f"{schedule_of(run)}: pipeline idle {idle} of the step with {batches}"]
    words += [f", {uneven} by the work of each stage"] if uneven != idle else []
    words += [f"; {less}"] if (less := shorter(run)) else []
    return f"PP={grid.pipeline}: {layers} layers{chunks}{split}; {''.join(words)}"


MOST_ROWS = 8
OFTEN = 4.0
"""Epochs; beyond about four, repeated text teaches clearly less than new text (arXiv 2305.16264)."""


def _sample_words(run: RunConfig) -> str:
    if steps_vary(run):
        return f"by stage, up to {plural(run.sample_tokens, 'token')} per sample"
    tokens = count(run.train.global_batch * run.sample_tokens)
    return f"{plural(run.sample_tokens, 'token')} per sample, {tokens} tokens per step"


def _rate_words(run: RunConfig) -> str:
    if Schedule.of(run).pieces:
        return "lr by stage"
    return f"lr {run.optim.lr:g} {run.optim.lr_decay_style}"


def _of_plan(run: RunConfig) -> str:
    """Return of how many planned iterations those of the run are the first, empty when of none."""
    planned = run.train.planned_iters
    return f" of {planned} planned" if planned > run.train.train_iters else ""


def ramp_line(run: RunConfig) -> str:
    """Return how the batch grows, empty when it does not."""
    sizes = BatchSchedule.of(run)
    if not sizes.is_ramp:
        return ""
    return (
        f"from {sizes.start} samples by {sizes.increment} to {sizes.final} over {count(sizes.ramp_samples)} samples: "
        f"{sizes.ramp_iterations} iterations"
    )


def skips_line(run: RunConfig) -> str:
    """Return which iterations are skipped, empty when none is."""
    skips = SkipRanges.parse(run.train.skip_iterations)
    steps = skips.count_until(run.train.train_iters)
    return f"iterations {skips}: the data of {plural(steps, 'step')} is skipped" if steps else ""


def corpora_lines(shares: Sequence[Share]) -> Iterator[str]:
    """Yield a line for all corpora together, and when there are several one for each of the largest."""
    tokens, drawn = sum(share.tokens for share in shares), sum(share.drawn for share in shares)
    files = sum(share.files for share in shares)
    most = max(share.most_epochs for share in shares)
    ends = f", one file {most:.3g}" if most > 1.1 * max(share.epochs for share in shares) else ""
    yield (
        f"{_number(len(shares), 'corpus', 'corpora')} of {_number(files, 'file', 'files')}, {count(tokens)} tokens to "
        f"train on; {count(drawn)} are drawn, {drawn / tokens:.3g} epochs{ends}"
    )
    if len(shares) == 1:
        return
    shown = shares if len(shares) <= MOST_ROWS else shares[: MOST_ROWS - 1]
    width = max(len(share.corpus) for share in shown)
    for share in shown:
        often = "  <- read often" if share.epochs > OFTEN else ""
        yield (
            f"{share.corpus:{width}} {share.weight:6.1%} {_number(share.files, 'file', 'files'):>10} "
            f"{count(share.tokens):>6} tokens {share.epochs:8.3g} epochs{often}"
        )
    rest = shares[len(shown) :]
    if rest:
        worst = max(rest, key=lambda share: share.epochs)
        yield (
            f"{len(rest)} more: {sum(share.weight for share in rest):.1%}, up to {worst.epochs:.3g} epochs "
            f"({worst.corpus})"
        )


def list_notes(run: RunConfig) -> Iterator[str]:
    """Yield a line where files are listed more than once, and where held-out files are trained on.

    Raises:
        DataError: a list cannot be read.
    """
    if run.finetune.task:
        yield from (read_chats(run) if run.finetune.is_chat else read_task(run.finetune)).notes
    if run.finetune.task or (uses_demo(run) and not run.data.stage_table):
        return
    staged = [shards for _, _, shards in stages_with_files(run)]
    if run.data.stage_table:  # a file may be in several stages
        train = list({shard.prefix: shard for shards in staged for shard in _used(shards)}.values())
    else:
        train = _used(read_shards(run))
    if twice := repeated(train):
        yield (
            f"{_number(len(twice), 'training file is', 'training files are')} listed more than once, as "
            f"{twice[0][0].prefix}: each time with its own share of the samples"
        )
    for own in (run.data.held_out("valid"), run.data.held_out("test")):
        held_out = _used(read_held_out(own)) if own.text else []
        seen = repeated([*train, *held_out])[len(twice) :]
        both = [shard for shard, first in seen if any(first is each for each in train)]
        if both:
            many = _number(len(both), "of its files is", "of its files are")
            where = f"{own.variable}={own.text}: {many} trained on, too, as {both[0].prefix}"
            yield f"{where}; its loss says little there"


def _used(shards: Sequence[Shard]) -> list[Shard]:
    return [shard for shard in shards if shard.weight > 0]


def _number(value: int, one: str, many: str) -> str:
    return f"{value} {one if value == 1 else many}"
