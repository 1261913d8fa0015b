"""Options of the commands that start a run."""

from __future__ import annotations

from collections.abc import Callable

import click

from megads.cli.options.request import ignores_local_rank
from megads.cli.submit import takes_job_options


def run_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a command that starts a run."""
    for option in reversed(_RUN_OPTIONS):
        function = option(function)
    return function


_RUN_OPTIONS = (
    click.option("--dry-run", is_flag=True, help="Print settings, DeepSpeed's dictionary and the command."),
    click.option("--prepare", "only_prepare", is_flag=True, help="Write the run folder; say what starts ranks on it."),
    click.option("--fresh", is_flag=True, help="Start a new run in a new folder, e.g. runs/7B-2; nothing is deleted."),
    ignores_local_rank,
    click.option("--no-env", is_flag=True, help="Take no settings from the environment."),
    click.option("--submit", is_flag=True, help="Submit a job for it; needs --walltime 6:00:00."),
    takes_job_options,
)
