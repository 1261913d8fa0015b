"""``megads replay``: compute a step with NaN or Inf again, on one rank."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def replay(folder: Path) -> None:
    """Compute the micro-batch in FOLDER again on one rank: megads replay runs/7B/nonfinite-0000007

    A run makes the folder when a step has NaN or Inf. Exit code 0: not finite here, too; 1: finite here, so a device, a
    kernel or the layout made it.
    """
    from megads.train.numbers.replay import replay as compute

    found = compute(folder, os.environ)
    kept = found.kept
    place = f"rank {kept.rank}" + (f" ({kept.host})" if kept.host else "")
    click.echo(f"run      step {kept.iteration} on {place}: {kept.origin.line()}")
    steps = kept.iteration - 1
    behind = "the weights of the step" if found.is_exact else f"not those of the step, which had {steps} updates"
    click.echo(f"weights  {found.weights}: {behind}")
    click.echo(f"batch    {len(kept.batch)} samples from number {kept.first_sample}; loss {found.loss:.6g}")
    if found.origin is None:
        click.echo(
            "here     every number is finite on one rank: suspect the device or memory of that rank, or the layout"
        )
        sys.exit(1)
    same = (kept.origin.layer, kept.origin.operator, kept.origin.phase)
    is_same = same == (found.origin.layer, found.origin.operator, found.origin.phase)
    click.echo(f"here     {found.origin.line()}")
    click.echo("same     operator, layer and pass" if is_same else "other    operator, layer or pass than in the run")
