"""``megads checkpoint import-megatron`` and ``export-megatron``."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from megads.cli.checkpoint import STEP, find_checkpoint
from megads.cli.checkpoint.replayed import described, replayed
from megads.cli.options.request import absolute
from megads.cli.progress_bar import bar
from megads.errors import CheckpointError

_COUNT = click.IntRange(min=1)


@click.command()
@click.argument("src", metavar="SRC")
@click.argument("dst", metavar="DST")
@click.option("--vocab-size", type=_COUNT, help="Vocabulary size; further rows are padding.")
@click.option("--num-heads", "--num-attention-heads", "num_heads", type=_COUNT, help="Query heads.")
@click.option("--num-kv-heads", "--num-query-groups", "num_kv_heads", type=_COUNT, help="Key/value heads.")
@click.option("--head-dim", "--kv-channels", "head_dim", type=_COUNT, help="Channels of a head.")
@click.option("--seq-length", type=_COUNT, help="Context length that it was trained with.")
@click.option(
    "--activation", type=click.Choice(["swiglu", "gelu", "gelu_tanh"]), help="Activation of the MLP; gelu is exact."
)
@click.option("--normalization", type=click.Choice(["rmsnorm", "layernorm"]), help="Kind of norm.")
@click.option("--norm-epsilon", type=click.FloatRange(min=0, min_open=True), help="Epsilon of the norms.")
@click.option("--position-embedding", type=click.Choice(["rope", "learned"]), help="Kind of positions.")
@click.option(
    "--rope-theta", "--rotary-base", "rope_theta", type=click.FloatRange(min=1), help="Base of rotary frequencies."
)
@click.option(
    "--vocab-multiple",
    "--make-vocab-size-divisible-by",
    "vocab_multiple",
    type=_COUNT,
    help="Pad the vocabulary to a multiple of this.",
)
@click.option(
    "--checkpoint-version",
    "version",
    type=click.FloatRange(0, 3),
    help="Order of the rows of queries, keys and values, if the files state it wrongly.",
)
def import_megatron_command(src: str, dst: str, version: float | None, **stated: Any) -> None:
    """Make a checkpoint of Megatron-LM's or Megatron-DeepSpeed's weights, for LOAD.

    SRC is the folder with latest_checkpointed_iteration.txt (or latest), or one iter_*, release or global_step*
    folder in it: GPT, Llama, BERT and T5 models of any TP x PP, with Megatron's old or new (core) names, and
    DeepSpeed's layer_* or mp_rank_* files with any ZeRO stage but 3. DST is a folder of checkpoints, in which
    iter_0000000 is made. Weights only: a run that LOADs it starts with a new optimizer.

    The options say what old files do not, or correct them. No code that is in a file is ever run.
    """
    from megads.checkpoint.convert.megatron.import_ import import_megatron

    final = absolute(dst)
    given = {name: value for name, value in stated.items() if value is not None}
    with bar("importing", "tensors") as progress:
        source = absolute(src)
        # What the user stated is not in the files, which are then read by other settings.
        describe = described(source) if not (given or version) else dict
        done = import_megatron(source, final, given, version=version, progress=progress, function=describe)
    for note in done.notes:
        click.echo(f"megads: {CheckpointError(note)}", err=True)
    model = done.model
    layers = f"{model.num_layers} + {model.decoder_layers}" if model.decoder_layers else f"{model.num_layers}"
    lengths = f"SEQ={model.seq_length} DECODER_SEQ={model.decoder_seq_length} " if model.decoder_layers else ""
    click.echo(
        f"{done.path}: {layers} layers, hidden {model.hidden_size}, {model.num_heads} heads "
        f"({model.num_kv_heads} key/value), {model.normalization}, {model.activation}, {model.position_embedding}, "
        f"{model.vocab_size} tokens; {lengths}LOAD={final} USE_CHECKPOINT_ARGS=1 trains it"
    )


@click.command()
@click.argument("ckpt", metavar="CKPT")
@click.argument("dst", metavar="DST")
@click.option(
    "--tp", "--target-tensor-parallel-size", "tensor", type=_COUNT, default=1, show_default=True, help="Tensor ranks."
)
@click.option(
    *("--pp", "--target-pipeline-parallel-size", "pipe"),
    type=_COUNT,
    default=1,
    show_default=True,
    help="Pipeline stages.",
)
@click.option(
    *("--split-rank", "--pipeline-model-parallel-split-rank", "split_rank"),
    type=_COUNT,
    help="First stage of T5's decoder; default: the most even one.",
)
@click.option(
    "--names",
    "style",
    type=click.Choice(["legacy", "core", "core-te"]),
    default="legacy",
    show_default=True,
    help="Parameter names of: Megatron's legacy models; Megatron-core; the same with Transformer Engine.",
)
@click.option("--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), default="fp32", show_default=True)
@click.option("--iteration", type=click.IntRange(min=0), help="Write iter_NNNNNNN; default: a release.")
@click.option(
    "--make-vocab-size-divisible-by", "vocab_multiple", type=_COUNT, help="Pad the vocabulary to this times TP."
)
@STEP
def export_megatron_command(ckpt: str, dst: str, step: int | None, **target: Any) -> None:
    """Write the weights of a checkpoint as Megatron's mp_rank_TT[_PPP]/model_optim_rng.pt.

    CKPT is a run, a folder of checkpoints (the newest that is valid) or a checkpoint. DST is made: a folder for
    Megatron's --load, with latest_checkpointed_iteration.txt. There is no optimizer in it: load it as a release
    or with --finetune, or with --no-load-optim --no-load-rng.
    """
    from megads.checkpoint.convert.megatron.export import export_megatron
    from megads.checkpoint.convert.megatron.target import Target
    from megads.checkpoint.lora.merged import open_for_use

    found = find_checkpoint(absolute(ckpt), step)
    wanted, said = Target(**target), list[str]()
    with bar("exporting", "tensors") as progress, open_for_use(found) as reader:
        check = partial(replayed(found.path, reader.manifest, said), wanted.dtype)
        made = export_megatron(reader, absolute(dst), wanted, progress=progress, check=check)
    click.echo(f"{made}: TP={wanted.tensor} x PP={wanted.pipe}, {wanted.style} names, {wanted.dtype}, of {found.path}")
    for line in said:
        click.echo(line)
