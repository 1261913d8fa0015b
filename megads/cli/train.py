"""``megads train``: from settings to ranks, or to a batch job."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megads.cli.options.flags import EPILOG, FlagCommand
from megads.cli.options.notes import show_notes
from megads.cli.options.request import ask_of
from megads.cli.submit import JOB_OPTIONS, refuse_job_options, wish_of
from megads.errors import MegadsError
from megads.text.plural import plural

if TYPE_CHECKING:
    from megads.launch.request import TrainRequest
    from megads.launch.starters.plan import LaunchPlan
    from megads.launch.user_ranks.entry import Started


def job_options(command: Any) -> Any:
    """Add the options that say what a job asks of its scheduler."""
    for option in reversed(JOB_OPTIONS):
        command = option(command)
    return command


@click.command(cls=FlagCommand, epilog=EPILOG)
@click.option("--preset", help="Model preset; `megads config --presets` lists them.")
@click.option(
    "--set", "pairs", multiple=True, metavar="SECTION.KEY=VALUE", help="Override one setting; may be repeated."
)
@click.option("--dry-run", is_flag=True, help="Print settings, DeepSpeed's dictionary and the command; start nothing.")
@click.option("--prepare", "only_prepare", is_flag=True, help="Write the run folder only; say what starts ranks on it.")
@click.option("--fresh", is_flag=True, help="Start a new run in a new folder, e.g. runs/7B-2; nothing is deleted.")
@click.option(
    "--local_rank", "--local-rank", hidden=True, help="Local rank of this process, as launchers pass it; not read."
)
@click.option("--no-env", is_flag=True, help="Take no settings from the environment.")
@click.option("--submit", is_flag=True, help="Submit a job for it; needs --walltime 6:00:00.")
@job_options
def train(
    preset: str | None,
    pairs: tuple[str, ...],
    dry_run: bool,
    no_env: bool,
    submit: bool,
    only_prepare: bool,
    fresh: bool,
    local_rank: str | None,
    flags: tuple[tuple[str, str], ...],
    **job: Any,
) -> None:
    """Train a model. Settings: default < preset < machine < environment < --set."""
    from megads.launch.user_ranks.entry import become_rank, started_rank

    env = dict(os.environ)
    if (info := started_rank(env)) is None:
        sys.exit(_train(preset, pairs, flags, job, dry_run, no_env, submit, only_prepare, fresh))

    def prepare(started: Started, begin: Callable[[LaunchPlan], int]) -> int:
        if submit:
            raise MegadsError(f"--submit: {started.by} started {plural(len(started.hosts), 'rank')}; submit without it")
        if fresh:
            raise MegadsError(
                f"--fresh: {started.by} may restart its ranks, and a new run would start each time; use RUN_NAME"
            )
        return _train(preset, pairs, flags, job, dry_run, no_env, submit, only_prepare, fresh, started, begin)

    become_rank(info, env, prepare)


def _train(
    preset: str | None,
    pairs: tuple[str, ...],
    flags: tuple[tuple[str, str], ...],
    job: dict[str, Any],
    dry_run: bool,
    no_env: bool,
    submit: bool,
    only_prepare: bool,
    fresh: bool,
    started: Started | None = None,
    begin: Callable[[LaunchPlan], int] | None = None,
) -> int:
    """Do what the command line asks, as the process that decides; return the exit code."""
    ask = replace(ask_of(preset, pairs, flags), started=started)
    ask = ask.starting_fresh() if fresh else ask
    if no_env:
        from megads.launch.submit.training import without_settings

        env = without_settings(ask.env)
        # The line that resumes the run may say TRAIN_ITERS=200 in front.
        if "MEGADS_COMMAND" in env:
            env["MEGADS_COMMAND"] = env["MEGADS_COMMAND"].replace(" --no-env", "", 1)
        ask = replace(ask, env=env)
    if submit:
        _submit(ask, job, dry_run)
        return 0
    refuse_job_options(job)
    from megads.launch.plan_run import describe, prepare, start, start_line_of

    if dry_run and not started and _previewed(ask):
        return 0
    prepared = prepare(ask)
    if dry_run:
        from megads.launch.preflight.checkpoint_start import difference_lines
        from megads.text.secrets import hidden

        notes = [*prepared.resolved.notes, *difference_lines(prepared.run, prepared.begins)]
        # A run that continues in its folder needs no note; a new folder does.
        show_notes([*notes, prepared.folder.note if fresh else ""])
        click.echo(hidden(describe(prepared), ask.env))
        return 0
    if only_prepare:

        def begin(plan: LaunchPlan) -> int:
            click.echo(start_line_of(prepared))
            return 0

    return start(prepared, sys.stderr, begin)


def _previewed(ask: TrainRequest) -> bool:
    """Print what the run would be on a machine that this host is not; return whether it is one."""
    from megads.launch.preview import preview
    from megads.text.secrets import hidden

    found = preview(ask)
    if found is None:
        return False
    notes, text = found
    show_notes(notes)
    click.echo(hidden(text, ask.env))
    return True


def _submit(ask: TrainRequest, job: dict[str, Any], dry_run: bool) -> None:
    from megads.launch.submit.training import JOB, prepare_submission, submit, without_values

    wish = wish_of(job)
    submission = prepare_submission(ask, wish, Path.cwd())
    folder = submission.folder
    show_notes((*submission.resolved.notes, folder.note))
    if dry_run:
        from megads.text.secrets import hidden

        click.echo(hidden(without_values(submission.text, wish.variables), ask.env), nl=False)
    elif folder.complete:
        click.echo(f"{folder.path} is complete; a larger TRAIN_ITERS trains longer, another RUN_NAME starts a new run")
    else:
        jobs = submit(submission, ask.env)
        click.echo("\n".join(jobs))
        where = folder.path
        click.echo(f"megads: {where / JOB} is submitted; `megads stop {where}` saves and stops the run", err=True)
