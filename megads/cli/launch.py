"""``megads launch``: start any program as ranks, as training is started."""

from __future__ import annotations

import os
import socket
import sys

import click

from megads.cli.options.request import checkout


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-n", "--ranks", type=click.IntRange(min=1), help="Total ranks; the last host may take fewer.")
@click.option("--hosts", type=click.IntRange(min=1), help="Use the first N hosts (NHOSTS).")
@click.option("--ppn", type=click.IntRange(min=1), help="Ranks on each host (NGPU_PER_HOST).")
@click.option("--hostfile", help="One host per line, instead of the scheduler's (HOSTFILE).")
@click.option("--with", "starter", help="Launcher, e.g. srun or openmpi (LAUNCH_WITH).")
@click.option("--container", help="Image in which COMMAND runs (CONTAINER).")
@click.option("--machine", help="Facts of envs/<machine>.yaml (MACHINE).")
@click.option("--dry-run", is_flag=True, help="Print shell lines that do the same; start nothing.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def launch(
    ranks: int | None,
    hosts: int | None,
    ppn: int | None,
    hostfile: str | None,
    starter: str | None,
    container: str | None,
    machine: str | None,
    dry_run: bool,
    command: tuple[str, ...],
) -> None:
    """Start COMMAND on every rank: megads launch -n 4 -- python script.py

    COMMAND finds RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment.
    """
    from megads.launch.any_program import plan_program, run_program

    options = {
        "launch.num_hosts": hosts,
        "launch.ranks_per_host": ppn,
        "launch.hostfile": hostfile,
        "launch.launch_with": starter,
        "launch.container": container,
        "machine": machine,
    }
    overrides = {name: str(value) for name, value in options.items() if value}
    plan = plan_program(
        command, os.environ, hostname=socket.gethostname(), root=checkout(), ranks=ranks or 0, overrides=overrides
    )
    if dry_run:
        click.echo(plan.script())
        return
    click.echo(f"$ {plan.line()}", err=True)
    sys.exit(run_program(plan, os.environ))
