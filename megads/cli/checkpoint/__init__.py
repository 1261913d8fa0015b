"""``megads checkpoint``: look at checkpoints, reshard them, and exchange them with other programs."""

from __future__ import annotations

import click

from megads.cli.group import LateGroup

COMMANDS = {
    "list": ("megads.cli.checkpoint.look", "Show the checkpoints of a run: step, tokens, loss, size, layout."),
    "inspect": ("megads.cli.checkpoint.look", "Show a checkpoint's tensors: shapes and norms."),
    "verify": ("megads.cli.checkpoint.look", "Read every byte of a checkpoint and check it."),
    "reshape": ("megads.cli.checkpoint.reshape", "Reshard a checkpoint: write it for another layout."),
    "export-hf": ("megads.cli.checkpoint.huggingface", "To a Hugging Face folder."),
    "import-hf": ("megads.cli.checkpoint.huggingface", "From a Hugging Face folder."),
    "export-megatron": ("megads.cli.checkpoint.megatron", "To Megatron-LM's mp_rank files."),
    "import-megatron": ("megads.cli.checkpoint.megatron", "From Megatron-LM's or Megatron-DeepSpeed's files."),
}


@click.group(cls=LateGroup, late=COMMANDS, suffix="_command")
def checkpoint() -> None:
    """Inspect and reshard checkpoints, and exchange them with other programs."""
