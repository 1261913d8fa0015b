"""``megads checkpoint merge-lora``: adapters of low rank."""

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
