"""``megads checkpoint reshape``: reshard a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from megads.cli.checkpoint import STEP, find_checkpoint
from megads.cli.checkpoint.tools import Said, tool_options
from megads.cli.options.request import absolute
from megads.cli.progress_bar import bar
from megads.errors import CheckpointError
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
@click.option(
    *("--pipeline-model-parallel-split-rank", "--split-rank", "split_rank"),
    type=_DEGREE,
    help="Of T5 in Megatron's files: the first stage of the decoder.",
)
@tool_options
def reshape_command(
    places: tuple[str, ...],
    load_dir: str | None,
    save_dir: str | None,
    split_rank: int | None,
    said: Said,
    **wanted: Any,
) -> None:
    """Reshard a checkpoint: write it for another layout, so that each of its ranks reads one file of its own.

    CKPT is a run, a folder of checkpoints (the newest that is valid) or a checkpoint; DST a folder of
    checkpoints, in which one of the same iteration is made. What is not given stays as it was.
    Nothing needs this before a run: training resumes from any layout in any other.

    Megatron's files become Megatron's files: DST is then a folder for its --load, with a release.

    The command line of tools/merge_mp_partitions.py or tools/checkpoint/util.py works here as it is.
    """
    merges = said.tensor is not None
    source, target = _places(places, load_dir, save_dir, merges=merges)
    if merges:
        # The tool merges the slices of the tensor ranks, and its target is one replica of the weights.
        wanted["weights_only"] = True
        for name in ("tensor", "pipeline", "sequence", "data"):
            wanted[name] = wanted[name] or 1
    if _is_megatrons(source):
        _reshape_megatron(source, target, split_rank, said, wanted)
        return
    if split_rank is not None:
        raise CheckpointError(
            "--split-rank: is for Megatron's files of T5; --pipeline-split lists the layers of stages"
        )
    _reshape_own(source, target, said, wanted)


def _is_megatrons(source: Path) -> bool:
    from megads.checkpoint.resume.start_point import is_megatron_folder

    try:
        return is_megatron_folder(source)
    except (OSError, CheckpointError):
        return False  # what looks for a checkpoint of megads there says what is wrong


def _reshape_own(source: Path, target: Path, said: Said, wanted: dict[str, Any]) -> None:
    from megads.checkpoint.convert.reshard import layout_text, reshape, target_of
    from megads.checkpoint.resume.compatibility import model_of
    from megads.text.units import size

    step, workers, weights_only = (wanted.pop(name) for name in ("step", "workers", "weights_only"))
    found = find_checkpoint(source, step)
    manifest = found.manifest
    said.check(model_of(found.path, manifest), manifest.layout["tensor"], manifest.layout["pipe"])
    run = target_of(manifest, **wanted)
    with bar("reshaping") as progress:
        done = reshape(
            found.path,
            manifest,
            target,
            run,
            weights_only=weights_only,
            workers=workers or min(_MOST_WORKERS, len(os.sched_getaffinity(0))),
            progress=progress,
        )
    if weights_only and manifest.iteration:
        click.echo("megads: weights only: start a run from it with FINETUNE=1 or NO_LOAD_OPTIM=1", err=True)
    had, made = layout_text(manifest.layout), layout_text(done.manifest.layout)
    files = len(done.manifest.files)
    click.echo(f"{done.path}: {made}, {plural(files, 'file')}, {size(done.manifest.bytes)}; {found.path} is {had}")


def _reshape_megatron(source: Path, target: Path, split_rank: int | None, said: Said, wanted: dict[str, Any]) -> None:
    from megads.checkpoint.convert.megatron.reshape import reshape_megatron
    from megads.checkpoint.convert.megatron.target import Target

    for name in ("sequence", "data"):
        if (wanted[name] or 1) != 1:
            raise CheckpointError(f"{source}: Megatron's files have TP and PP only; drop the other degrees")
    for name, option in (("zero_stage", "--zero-stage"), ("pipeline_split", "--pipeline-split"), ("step", "--step")):
        if wanted[name] is not None:
            raise CheckpointError(f"{option}: is for checkpoints of megads, {source} is Megatron's; drop it")
    if not (wanted["tensor"] and wanted["pipeline"]):
        raise CheckpointError(f"{source}: is Megatron's; pass both --tp and --pp")
    layout = Target(tensor=wanted["tensor"], pipe=wanted["pipeline"], split_rank=split_rank)
    with bar("reshaping", "tensors") as progress:
        made, notes = reshape_megatron(source, target, layout, said.check, progress)
    for note in notes:
        click.echo(f"megads: {CheckpointError(note)}", err=True)
    click.echo(f"{made}: TP={layout.tensor} x PP={layout.pipe}, Megatron's files, of {source}")


def _places(words: tuple[str, ...], load_dir: str | None, save_dir: str | None, *, merges: bool) -> tuple[Path, Path]:
    left = list(words)
    given = [each if each is not None else left.pop(0) if left else None for each in (load_dir, save_dir)]
    if merges and given[0] is None and given[1] is not None and not left:
        # Megatron's README merges CKPT into CKPT/merged, and names the latter only.
        given[0] = str(Path(given[1]).parent)
    if left or None in given:
        raise click.UsageError("pass one CKPT and one DST")
    source, target = map(str, given)
    return absolute(source), absolute(target)
