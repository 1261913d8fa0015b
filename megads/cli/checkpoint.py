"""``megads checkpoint``: look at checkpoints, cut them anew, and exchange them with other programs."""

from __future__ import annotations

import importlib

import click

COMMANDS = {
    "list": ("megads.cli.checkpoint_look", "Show the checkpoints of a run: step, tokens, loss, size, layout."),
    "inspect": ("megads.cli.checkpoint_look", "Show a checkpoint's tensors: shapes and norms."),
    "verify": ("megads.cli.checkpoint_look", "Read every byte of a checkpoint and check it."),
    "reshape": ("megads.cli.checkpoint_reshape", "Write a checkpoint anew for another layout."),
    "export-hf": ("megads.cli.checkpoint_hf", "To a Hugging Face folder."),
    "import-hf": ("megads.cli.checkpoint_hf", "From a Hugging Face folder."),
    "export-megatron": ("megads.cli.checkpoint_megatron", "To Megatron-LM's mp_rank files."),
    "import-megatron": ("megads.cli.checkpoint_megatron", "From Megatron-LM's or Megatron-DeepSpeed's files."),
}


class _CheckpointGroup(click.Group):
    """Loads its commands when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_CheckpointGroup)
def checkpoint() -> None:
    """Look at checkpoints, cut them anew, and exchange them with other programs."""
