"""``megads detoxify``: the five steps of SGEAT (arXiv 2202.04173)."""

from __future__ import annotations

import click

from megads.cli import CommandGroup

COMMANDS = {
    "generate": ("megads.cli.detoxify.generate", "1. Texts of the model, without prompts or K times for each."),
    "annotate": ("megads.cli.detoxify.annotate", "2. A toxicity score for each text."),
    "filter": ("megads.cli.detoxify.filter", "3. The least toxic half."),
    "finetune": ("megads.cli.detoxify.finetune", "4. Train the model on it."),
    "evaluate": ("megads.cli.detoxify.evaluate", "5. Expected maximum toxicity, toxicity probability, perplexity."),
}


@click.group(cls=CommandGroup, late=COMMANDS, suffix="_texts")
def detoxify() -> None:
    """Detoxify a model with texts that it generates itself; docs/detoxify.md."""
