"""``megads checkpoint``: look at checkpoints, reshard them, and exchange them with other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from megads.cli import CommandGroup
from megads.errors import CheckpointError

if TYPE_CHECKING:
    from megads.checkpoint.format.folders import CheckpointRef

COMMANDS = {
    "list": ("megads.cli.checkpoint.look", "Show the checkpoints of a run: step, tokens, loss, size, layout."),
    "inspect": ("megads.cli.checkpoint.look", "Show a checkpoint's tensors: shapes and norms."),
    "verify": ("megads.cli.checkpoint.look", "Read every byte of a checkpoint and check it."),
    "reshape": ("megads.cli.checkpoint.reshape", "Reshard a checkpoint: write it for another layout."),
    "merge-lora": ("megads.cli.checkpoint.lora", "Merge adapters (LoRA) with their base into a plain checkpoint."),
    "export-lora": ("megads.cli.checkpoint.lora", "Adapters (LoRA) to a folder of peft."),
    "import-lora": ("megads.cli.checkpoint.lora", "Adapters (LoRA) from a folder of peft."),
    "export-hf": ("megads.cli.checkpoint.huggingface", "To a Hugging Face folder."),
    "import-hf": ("megads.cli.checkpoint.huggingface", "From a Hugging Face folder."),
    "export-megatron": ("megads.cli.checkpoint.megatron", "To Megatron-LM's mp_rank files."),
    "import-megatron": ("megads.cli.checkpoint.megatron", "From Megatron-LM's or Megatron-DeepSpeed's files."),
}


@click.group(cls=CommandGroup, late=COMMANDS, suffix="_command")
def checkpoint() -> None:
    """Inspect and reshard checkpoints, and exchange them with other programs."""


STEP = click.option(
    "--step", "--ckpt-step", type=click.IntRange(min=0), help="The iteration to take; default: the newest."
)


def find_checkpoint(place: Path, step: int | None = None) -> CheckpointRef:
    """Return the checkpoint of ``place``, see ``source_of``, after naming newer ones that were skipped."""
    from megads.checkpoint.resume.start_point import source_of

    found = source_of(place, step)
    for broken in found.broken:
        click.echo(f"megads: skipped: {CheckpointError(broken)}", err=True)
    return found
