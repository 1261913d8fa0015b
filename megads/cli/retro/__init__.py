"""``megads retro``: the chunk database of Retro, its index, and the neighbours of a run's samples."""

from __future__ import annotations

import click

from megads.cli import CommandGroup

COMMANDS = {
    "build": ("megads.cli.retro.steps", "All steps: chunks, index, neighbours."),
    "train-index": ("megads.cli.retro.steps", "Train the index on sampled chunks."),
    "add": ("megads.cli.retro.steps", "Add the chunks to the index."),
    "query": ("megads.cli.retro.steps", "Find the neighbours of a run's samples."),
    "validate": ("megads.cli.retro.validate", "Recompute a share of a project and compare it."),
}


@click.group(cls=CommandGroup, late=COMMANDS)
def retro() -> None:
    """Prepare what a Retro model retrieves from: a project folder, as Megatron's tools/retro makes it."""
