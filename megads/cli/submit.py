"""``megads submit``: any script as a PBS or SLURM job of this machine; and the options of jobs."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megads.cli.options.request import request_of

if TYPE_CHECKING:
    from megads.launch.request import TrainRequest
    from megads.launch.submit.job_script import JobOptions

JOB_OPTIONS = (
    click.option("--nodes", type=click.IntRange(1), metavar="N", help="Job: hosts; without it NHOSTS, or 1."),
    click.option("--account", metavar="PROJECT", help="Job: account to charge."),
    click.option("--queue", metavar="NAME", help="Job: queue, partition or QOS; without it one that takes the job."),
    click.option("--chunk", metavar="TEXT", help="Job, PBS: resources of each host, e.g. ncpus=64:ngpus=4."),
    click.option("--option", "options", multiple=True, metavar="WORDS", help="Job: further option of qsub or sbatch."),
    click.option(
        "--env", "variables", multiple=True, metavar="NAME[=VALUE]", help="Job: environment variable to pass."
    ),
    click.option("--chain", type=click.IntRange(1), metavar="N", help="Job: submit N, each after the one before."),
)


def takes_job_options(command: Any) -> Any:
    """Add JOB_OPTIONS to a command."""
    for option in reversed(JOB_OPTIONS):
        command = option(command)
    return command


def job_options(job: dict[str, Any]) -> JobOptions:
    """Return the values of JOB_OPTIONS."""
    from megads.launch.submit.job_script import JobOptions

    return JobOptions(
        nodes=job["nodes"] or 0,
        account=job["account"] or "",
        queue=job["queue"] or "",
        chunk=job["chunk"] or "",
        options=tuple(word for text in job["options"] for word in shlex.split(text)),
        variables=job["variables"],
        chain=job["chain"] or 1,
    )


def refuse_job_options(job: dict[str, Any]) -> None:
    """Refuse options of a job where none is submitted.

    Raises:
        ConfigError: one is given.
    """
    from megads.errors import ConfigError

    given = next((name for name, value in job.items() if value), "")
    if given:
        name = {"options": "option", "variables": "env"}.get(given, given)
        raise ConfigError(f"--{name} is an option of a job; pass --submit too")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--walltime", metavar="H:MM:SS", help="Longest time of the job.")
@click.option("--container", metavar="IMAGE", help="Image in which the job's ranks run (CONTAINER).")
@click.option("--dry-run", is_flag=True, help="Print the job; submit nothing.")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@takes_job_options
def submit(
    walltime: str | None, container: str | None, dry_run: bool, script: str, words: tuple[str, ...], **job: Any
) -> None:
    """Submit SCRIPT with its arguments as a job; settings in the environment go along.

    megads submit --nodes 2 --walltime 1:00:00 train_7B.sh --set train.train_iters=500
    """
    from megads.launch.submit.job_script import send
    from megads.launch.submit.training import script_job

    request, options = request_of(None, ()), job_options(job)
    if container:
        request = replace(request, env={**request.env, "CONTAINER": container})
    walltime = walltime or request.env.get("WALLTIME", "")
    text, scheduler = script_job(request, options, walltime, script, words, Path.cwd())
    if dry_run:
        show_job(text, options, request)
    else:
        click.echo("\n".join(send(text, scheduler, request.env, chain=options.chain)))


def show_job(text: str, options: JobOptions, request: TrainRequest) -> None:
    """Print the script of a job without the values of secrets."""
    from megads.launch.submit.training import without_values
    from megads.text.secrets import hidden

    click.echo(hidden(without_values(text, options.variables), request.env), nl=False)
