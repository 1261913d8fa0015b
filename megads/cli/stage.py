"""``megads stage``: the Python environment on every host's own disk."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from pathlib import Path

import click

from megads.cli.options.request import checkout


@click.command()
@click.option("--hosts", type=click.IntRange(min=1), help="Use the first N hosts (NHOSTS).")
@click.option("--hostfile", help="One host per line, instead of the scheduler's (HOSTFILE).")
@click.option("--with", "starter", help="Launcher, e.g. srun or openmpi (LAUNCH_WITH).")
@click.option("--to", "folder", help="Folder on every host's own disk (STAGE_DIR); else megads-UID/stage in /tmp.")
@click.option("--archives", type=click.Path(path_type=Path), help="Folder of the archives; else .megads/stage.")
@click.option("--base/--no-base", "with_base", default=None, help="Whether to copy the Python of the venv, too.")
@click.option("--clean", is_flag=True, help="Remove what is staged on the hosts.")
def stage(
    hosts: int | None,
    hostfile: str | None,
    starter: str | None,
    folder: str | None,
    archives: Path | None,
    with_base: bool | None,
    clean: bool,
) -> None:
    """Copy the Python environment to the own disk of every host of this job, over a tree.

    eval "$(megads stage)" && megads launch -- python script.py

    It prints what a shell can eval: MEGADS_PYTHON, PATH and PYTHONPATH of the copy. `STAGE_ENV=1 megads train` does
    the same for its ranks.
    """
    from megads.launch.any_program import allocate_ranks, launch_settings
    from megads.launch.staging.stage import ARCHIVES, remove_staged
    from megads.launch.staging.stage import stage as stage_on
    from megads.text.plural import plural

    options = {
        "launch.num_hosts": hosts,
        "launch.hostfile": hostfile,
        "launch.launch_with": starter,
        "launch.stage_dir": folder,
    }
    given = {name: str(value) for name, value in options.items() if value}
    root, env = checkout(), dict(os.environ)
    run, facts = launch_settings(env, socket.gethostname(), root, given)
    allocation = allocate_ranks(run.launch.model_copy(update={"ranks_per_host": 1}), env, facts, 0)

    def say(line: str) -> None:
        click.echo(line, err=True)

    if clean:
        report = remove_staged(allocation, facts, run, env)
        removed = sum(host.removed for host in report.hosts)
        say(f"removed  {plural(removed, 'staged file')} on {plural(len(report.hosts), 'host')}")
        return
    found = stage_on(
        allocation,
        facts,
        run,
        env,
        python=env.get("MEGADS_PYTHON") or sys.executable,
        root=root,
        archives=archives or ARCHIVES,
        with_base=with_base,
        say=say,
    )
    say(f"staged   {found.line}")
    variables = {"MEGADS_PYTHON": found.python, **found.variables()}
    variables["PATH"] = os.pathsep.join([str(Path(found.python).parent), env.get("PATH", os.defpath)])
    click.echo("\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items()))
