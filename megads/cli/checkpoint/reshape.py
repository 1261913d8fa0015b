"""``megads checkpoint reshape``: reshard a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import click

from megads.cli.checkpoint import STEP, find_checkpoint
from megads.cli.options.request import absolute
from megads.cli.progress_bar import bar
from megads.text.plural import plural

_DEGREE = click.IntRange(min=1)
_MOST_WORKERS = 8


@click.command()
@click.argument("places", nargs=-1, metavar="CKPT DST")
@click.option("--load-dir", "--load", metavar="CKPT", help="The same as CKPT, as in other tools.")
@click.option("--save-dir", "--save", metavar="DST", help="The same as DST, as in other tools.")
@click.option("--tp", "--target-tensor-parallel-size", "tensor", type=_DEGREE, help="Tensor-parallel ranks.")
@click.option(
    "--pp",
    "--target-pipeline-parallel-size",
    "--target-pipeline-model-parallel-size",
    "pipeline",
    type=_DEGREE,
    help="Pipeline stages.",
)
@click.option("--sp", "sequence", type=_DEGREE, help="Sequence-parallel ranks.")
@click.option("--dp", "data", type=_DEGREE, help="Data-parallel ranks.")
@click.option("--zero-stage", type=click.IntRange(0, 3), help="ZeRO stage.")
@click.option("--pipeline-split", metavar="SPLIT", help="As PIPELINE_SPLIT.")
@click.option("--weights-only", is_flag=True, help="Skip the optimizer state.")
@STEP
@click.option(
    "--workers", type=click.IntRange(min=1), help="Files written in parallel; default: one per core, at most 8."
)
@click.option("--model-type", type=click.Choice(["GPT"]), hidden=True)
def reshape_command(
    places: tuple[str, ...],
    load_dir: str | None,
    save_dir: str | None,
    weights_only: bool,
    step: int | None,
    workers: int | None,
    model_type: str | None,
    **layout: int | str | None,
) -> None:
    """Reshard a checkpoint: write it for another layout, so that each of its ranks reads one file of its own.

    CKPT is a run, a folder of checkpoints (the newest that is valid) or a checkpoint; DST a folder of
    checkpoints, in which one of the same iteration is made. What is not given stays as it was.
    Nothing needs this before a run: training resumes from any layout in any other.
    """
    from megads.checkpoint.convert.reshard import layout_text, reshape, target_of
    from megads.text.units import size

    source, target = _places(places, load_dir, save_dir)
    found = find_checkpoint(source, step)
    run = target_of(found.manifest, **layout)
    with bar("reshaping") as progress:
        done = reshape(
            found.path,
            found.manifest,
            target,
            run,
            weights_only=weights_only,
            workers=workers or min(_MOST_WORKERS, len(os.sched_getaffinity(0))),
            progress=progress,
        )
    if weights_only and found.manifest.iteration:
        click.echo("megads: weights only: start a run from it with FINETUNE=1 or NO_LOAD_OPTIM=1", err=True)
    had, made = layout_text(found.manifest.layout), layout_text(done.manifest.layout)
    files = len(done.manifest.files)
    click.echo(f"{done.path}: {made}, {plural(files, 'file')}, {size(done.manifest.bytes)}; {found.path} is {had}")


def _places(words: tuple[str, ...], load_dir: str | None, save_dir: str | None) -> tuple[Path, Path]:
    left = list(words)
    given = [each if each is not None else left.pop(0) if left else None for each in (load_dir, save_dir)]
    if left or None in given:
        raise click.UsageError("pass one CKPT and one DST")
    source, target = map(str, given)
    return absolute(source), absolute(target)
