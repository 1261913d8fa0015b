"""``megads train``: from settings to ranks, or to a batch job."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megads.cli.options.request import settings_command, show_notes
from megads.cli.options.run import run_options
from megads.cli.submit import job_options, refuse_job_options, show_job
from megads.errors import MegadsError
from megads.text.plural import plural

if TYPE_CHECKING:
    from megads.launch.launchers.plan import LaunchPlan
    from megads.launch.request import TrainRequest
    from megads.launch.user_ranks.entry import Started


@settings_command
@run_options
def train(**options: Any) -> None:
    """Train a model. Settings: default < preset < machine < environment < --set."""
    begin_run(**options)


def begin_run(
    request: Callable[[], TrainRequest],
    dry_run: bool,
    no_env: bool,
    submit: bool,
    only_prepare: bool,
    fresh: bool,
    **job: Any,
) -> None:
    """Decide and start a run; in a process that the user started as a rank, become that rank."""
    from megads.launch.user_ranks.entry import become_rank, started_rank

    env = dict(os.environ)
    decide = partial(_train, request, job, dry_run, no_env, submit, only_prepare, fresh)
    if (info := started_rank(env)) is None:
        sys.exit(decide())

    def prepare(started: Started, begin: Callable[[LaunchPlan], int]) -> int:
        if submit:
            raise MegadsError(f"--submit: {started.by} started {plural(len(started.hosts), 'rank')}; submit without it")
        if fresh:
            raise MegadsError(
                f"--fresh: {started.by} may restart its ranks, and a new run would start each time; use RUN_NAME"
            )
        return decide(started, begin)

    become_rank(info, env, prepare)


def _train(
    request: Callable[[], TrainRequest],
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
    asked = replace(request(), started=started)
    asked = asked.starting_fresh() if fresh else asked
    if no_env:
        from megads.launch.submit.training import without_settings

        env = without_settings(asked.env)
        # The line that resumes the run may say TRAIN_ITERS=200 in front.
        if "MEGADS_COMMAND" in env:
            env["MEGADS_COMMAND"] = env["MEGADS_COMMAND"].replace(" --no-env", "", 1)
        asked = replace(asked, env=env)
    if submit:
        _submit(asked, job, dry_run)
        return 0
    refuse_job_options(job)
    from megads.launch.job import describe, start_line_of
    from megads.launch.start_when_free import prepare, start_when_free

    if dry_run and not started and _previewed(asked):
        return 0
    prepared = prepare(asked)
    if dry_run:
        from megads.launch.preflight.checkpoint_start import difference_lines
        from megads.text.secrets import hidden

        notes = [*prepared.resolved.notes, *difference_lines(prepared.run, prepared.start_point)]
        # A run that continues in its folder needs no note; a new folder does.
        show_notes([*notes, prepared.folder.note if fresh else ""])
        click.echo(hidden(describe(prepared), asked.env))
        return 0
    if only_prepare:

        def begin(plan: LaunchPlan) -> int:
            click.echo(start_line_of(prepared))
            return 0

    return start_when_free(prepared, sys.stderr, begin)


def _previewed(request: TrainRequest) -> bool:
    """Print what the run would be on a machine that this host is not; return whether it is one."""
    from megads.launch.preview import preview
    from megads.text.secrets import hidden

    found = preview(request)
    if found is None:
        return False
    notes, text = found
    show_notes(notes)
    click.echo(hidden(text, request.env))
    return True


def _submit(request: TrainRequest, job: dict[str, Any], dry_run: bool) -> None:
    from megads.launch.schedulers.base import JOB
    from megads.launch.submit.training import prepare_submission, submit

    options = job_options(job)
    submission = prepare_submission(request, options, Path.cwd())
    folder = submission.folder
    show_notes((*submission.resolved.notes, folder.note))
    click.echo(f"megads: {submission.cost}", err=True)
    if dry_run:
        show_job(submission.text, options, request)
    elif folder.complete:
        click.echo(f"{folder.path} is complete; a larger TRAIN_ITERS trains longer, another RUN_NAME starts a new run")
    else:
        jobs = submit(submission, request.env)
        click.echo("\n".join(jobs))
        where = folder.path
        click.echo(f"megads: {where / JOB} is submitted; `megads stop {where}` saves and stops the run", err=True)
