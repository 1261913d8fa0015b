"""``megads checkpoint merge-lora``, ``export-lora`` and ``import-lora``: adapters of low rank."""

from __future__ import annotations

import os

import click

from megads.cli.checkpoint import STEP, find_checkpoint
from megads.cli.options.request import absolute
from megads.cli.progress_bar import bar
from megads.text.plural import plural

BASE = click.option(
    "--base", metavar="CKPT", default="", help="Where the base is now; default: where it was in training."
)
_MOST_WORKERS = 8


@click.command()
@click.argument("source", metavar="CKPT")
@click.argument("target", metavar="DST")
@BASE
@STEP
def merge_lora_command(source: str, target: str, base: str, step: int | None) -> None:
    """Merge adapters (LORA_RANK) with the weights that they change into a plain checkpoint.

    CKPT is a run, a folder of checkpoints (the newest that is valid) or a checkpoint; DST a folder of
    checkpoints, in which one of the same iteration is made, in the layout of the base and without optimizer.
    """
    from megads.checkpoint.convert.reshard import reshape, target_of
    from megads.checkpoint.lora.merged import MergedReader, merged_of
    from megads.text.units import size

    found = find_checkpoint(absolute(source), step)
    manifest, ref = merged_of(found, str(absolute(base)) if base else "")
    with bar("merging") as progress:
        done = reshape(
            ref.path,
            manifest,
            absolute(target),
            target_of(manifest),
            weights_only=True,
            workers=min(_MOST_WORKERS, len(os.sched_getaffinity(0))),
            progress=progress,
            open_reader=lambda: MergedReader(found, ref, threads=1),
        )
    adapters = len(found.manifest.tensors) // 2
    click.echo(
        f"{done.path}: {size(done.manifest.bytes)}, {plural(adapters, 'adapter')} of {found.path} in {ref.path}; "
        "start a run from it with FINETUNE=1"
    )


@click.command()
@click.argument("source", metavar="CKPT")
@click.argument("target", metavar="DST")
@click.option("--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), default="fp32", show_default=True)
@click.option("--base-name", default="", metavar="NAME", help="The model that adapter_config.json names.")
@STEP
def export_lora_command(source: str, target: str, dtype: str, base_name: str, step: int | None) -> None:
    """Write adapters (LORA_RANK) as a folder that PeftModel.from_pretrained(model, DST) reads.

    CKPT is a run, a folder of checkpoints (the newest that is valid) or a checkpoint. The model is what export-hf
    makes of the base.
    """
    from megads.checkpoint.convert.peft.export import export_adapters
    from megads.checkpoint.format.reader import Reader

    found, final = find_checkpoint(absolute(source), step), absolute(target)
    with Reader(found.path, found.manifest, in_use=True) as reader:
        targets = export_adapters(reader, final, dtype=dtype, base=base_name)
    click.echo(f"{final}: adapters of rank {found.manifest.model['lora_rank']} of {', '.join(targets)} in {dtype}")


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option("--base", metavar="CKPT", required=True, help="The checkpoint that the adapters are for.")
@STEP
def import_lora_command(source: str, target: str, base: str, step: int | None) -> None:
    """Make a checkpoint of adapters of a folder of peft, which a run then trains further.

    SRC has adapter_config.json and adapter_model.safetensors, DST is a new folder of checkpoints, with the one of
    iteration 0. The base is a checkpoint of megads; import-hf makes one of a Hugging Face folder.
    """
    from megads.checkpoint.convert.peft.import_ import import_adapters

    final = absolute(target)
    path, model = import_adapters(absolute(source), final, find_checkpoint(absolute(base), step))
    click.echo(f"{path}: adapters of rank {model.lora_rank}, alpha {model.lora_alpha:g}, of {model.lora_targets}")
    click.echo("train them with, for example:")
    click.echo(f"  LOAD={final} USE_CHECKPOINT_ARGS=1 DATA_FILE_LIST=my-data.txt megads train")
