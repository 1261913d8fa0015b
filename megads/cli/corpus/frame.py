"""What all commands of ``megads corpus`` share: options, ranks, signals, the last line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from megads.errors import ConfigError

if TYPE_CHECKING:
    from megads.data.corpus.frame.report import Summary
    from megads.data.corpus.frame.step import Step

_OPTIONS = (
    click.option("--workers", "--num-threads", type=click.IntRange(min=1), help="Processes.  [default: cores]"),
    click.option("--max-bad-lines", type=click.IntRange(min=0), default=0, help="Bad lines that may be skipped."),
    click.option("--overwrite", "--force", is_flag=True, help="Replace existing files."),
    click.option(
        "--log-interval", type=click.IntRange(min=0), default=0, help="Documents between lines of progress; 0: by time."
    ),
    click.option("--block-bytes", type=click.IntRange(min=1), default=2 * 2**20, hidden=True),
    click.option("--commit-seconds", "commit_s", type=click.FloatRange(min=0), default=1.0, hidden=True),
    click.option("--keep-seconds", "keep_s", type=click.FloatRange(min=0), default=10.0, hidden=True),
)
dropped_option = click.option(
    "--dropped", default="", help="File for the dropped documents, each with the reason; default: none."
)


def frame_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the frame to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def in_and_out(paths: Sequence[str], inputs: Sequence[str], output: str, usage: str) -> tuple[list[str], str]:
    """Return the inputs and the output of a command line with positional arguments, options, or both.

    Args:
        paths: positional arguments: inputs, and the output as the last one where no option names it.
        inputs: of the option ``--input``.
        output: of the option ``--output``, "" for none.
        usage: how the command is called.

    Raises:
        ConfigError: one of them is missing.
    """
    names = [*inputs, *paths]
    if not output and paths:
        output = names.pop()
    if not names or not output:
        raise ConfigError(f"{'the input' if not names else 'the output'} is missing; usage: {usage}")
    return names, output


def run(
    step: Step, names: Sequence[str], output: str, options: dict[str, Any], *, is_hidden: bool = False
) -> Summary | None:
    """Run ``step`` over the inputs ``names``; return what was made, None on ranks other than 0."""
    from megads.cluster.machine import count_cores
    from megads.cluster.ranks import find_ranks
    from megads.data.corpus.frame.job import CorpusJob
    from megads.data.corpus.frame.run import run_step
    from megads.data.preprocess.input.files import find_inputs
    from megads.data.preprocess.part import Stopped
    from megads.data.preprocess.plan import How
    from megads.data.preprocess.team import EndedByLeader

    known = {each.name for each in fields(How)}
    how = {name: value for name, value in options.items() if name in known}
    how["workers"] = options.get("workers") or count_cores()
    job = CorpusJob(
        inputs=tuple(find_inputs(names)),
        step=step,
        output=os.path.expanduser(output),
        dropped=os.path.expanduser(options.get("dropped") or ""),
        is_hidden=is_hidden,
        how=How(**how),
    )
    me = find_ranks(os.environ)
    try:
        return run_step(job, rank=me.rank, size=me.world_size, stream=sys.stderr)
    except EndedByLeader:
        sys.exit(2)
    except Stopped as stopped:
        if me.rank == 0:
            click.echo("megads: stopped by a signal; rerun the same command to resume", err=True)
        sys.exit(128 + stopped.number)


def run_and_print(step: Step, names: Sequence[str], output: str, options: dict[str, Any]) -> None:
    """Run ``step``, and print a line that says what was kept and what was dropped."""
    from megads.cluster.mpi import finish_mpi

    summary = run(step, names, output, options)
    if summary is not None:
        click.echo(summary.line)
    finish_mpi()
