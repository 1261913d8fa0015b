"""``megads ensemble``: several runs in one allocation."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megads.cli.options.request import checkout

if TYPE_CHECKING:
    from megads.launch.ensemble.members import Ensemble, Member
    from megads.launch.ensemble.places import Places

CHECKS = 4  # dry runs at the same time
COMMAND = "MEGADS_COMMAND"  # of the script that started this process; a run is resumed by the ensemble


class EnsembleCommand(click.Command):
    """Says where options of ``megads train`` belong."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words; an option of another command is rejected with the place for it."""
        from megads.errors import ConfigError
        from megads.text.quoting import quoted

        try:
            return super().parse_args(ctx, list(args))
        except click.NoSuchOption as error:
            name = error.option_name
            hint = f"did you mean {error.possibilities[0]}? " if error.possibilities else ""
            place = next((number for number, word in enumerate(args) if word.partition("=")[0] == name), len(args))
            moved = " ".join(map(quoted, args[place : place + 2]))
            raise ConfigError(
                f"{name} is no option of megads ensemble; {hint}Words of megads train stand behind --, at the end: "
                f"megads ensemble ... -- {moved or name}"
            ) from None


@click.command(cls=EnsembleCommand, context_settings={"allow_interspersed_args": True})
@click.argument("file", metavar="[FILE.yaml]", required=False, type=click.Path(path_type=Path))
@click.option("--vary", "lists", multiple=True, metavar="NAME=A,B,C", help="A run for every value; several: all pairs.")
@click.option("--hosts", type=click.IntRange(min=1), help="Whole hosts of each run (1).")
@click.option("--ranks", type=click.IntRange(min=1), help="Ranks of each run, on a part of one host.")
@click.option("--folder", type=click.Path(path_type=Path), help="Holds the run folders; default: runs/<FILE>.")
@click.option("--dry-run", is_flag=True, help="List the runs and check their settings; start nothing.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def ensemble(
    file: Path | None,
    lists: tuple[str, ...],
    hosts: int | None,
    ranks: int | None,
    folder: Path | None,
    dry_run: bool,
    words: tuple[str, ...],
) -> None:
    """Train several runs in this allocation: as many at once as there is room for, the others after them.

    \b
    megads ensemble sweep.yaml
    megads ensemble --vary LR=1e-4,3e-4 --vary SEED=1,2 --ranks 4 --folder runs/lr -- --preset 7B

    Words after -- are those of `megads train`. The same command resumes; `megads stop FOLDER` stops all runs.
    """
    from megads.errors import ConfigError
    from megads.launch.any_program import launch_settings
    from megads.launch.ensemble.places import find_places
    from megads.launch.ensemble.supervise import Supervisor
    from megads.launch.nodes.memory import NodeMemory
    from megads.launch.schedulers.allocation import find_allocation
    from megads.launch.schedulers.time_left import ends_at, started_at
    from megads.text.plural import plural

    if file is not None and str(file).startswith("-"):  # the first word after --
        file, words = None, (str(file), *words)
    if file is not None and not file.is_file() and not file.suffix:
        raise ConfigError(f"{file}: not found; pass a YAML file, or only options and -- before words of megads train")
    asked = _asked(file, lists, hosts, ranks)
    folder = folder or Path("runs") / (file.stem if file else "ensemble")
    env = {name: value for name, value in os.environ.items() if name != COMMAND}
    run, facts = launch_settings(env, socket.gethostname(), checkout(), {})
    places = find_places(run.launch, env, facts)
    places.refuse(asked.members)
    if not places.one_host:
        for line in places.leave_out(NodeMemory.of(run.machine, env).bad_hosts(), asked.members):
            click.echo(f"megads: {line}", err=True)
    command = [sys.executable, "-m", "megads", "train", *asked.words, *words]
    _check(asked.members, command, env, folder, dry_run)
    if dry_run:
        at_once = _at_once(places, asked.members)
        room = f"{at_once} at the same time on {plural(len(places.free), 'host')}"
        click.echo(f"{plural(len(asked.members), 'run')} in {folder}, {room}")
        click.echo("\n".join(f"{each.name:30} {_size(each)}" for each in asked.members))
        return
    ends = 0.0
    if not places.one_host:
        ends = ends_at(find_allocation(run, env, facts), env, run.launch.walltime, started_at())
    code = Supervisor(folder, asked.members, places, command, env, ends).run()
    _show(asked, folder)
    sys.exit(code)


def _asked(file: Path | None, lists: Sequence[str], hosts: int | None, ranks: int | None) -> Ensemble:
    """Return the runs that the command line means; its sizes are those of the runs that the file gives none."""
    from dataclasses import replace

    from megads.errors import ConfigError
    from megads.launch.ensemble.members import Ensemble, Member, lists_of, read_ensemble, varied

    if hosts and ranks:
        raise ConfigError("--hosts and --ranks: use one of them; --hosts takes whole hosts, --ranks a part of one")
    if file is None and not lists:
        raise ConfigError("pass a YAML file, or --vary NAME=VALUE,VALUE")
    found = read_ensemble(file) if file else Ensemble((Member(""),))
    if hosts or ranks:
        found = replace(found, members=tuple(replace(m, hosts=hosts or 1, ranks=ranks or 0) for m in found.members))
    return varied(found, lists_of(lists)) if lists else found


def _check(
    members: Sequence[Member], command: Sequence[str], env: Mapping[str, str], folder: Path, all_of: bool
) -> None:
    """Check the settings of every run that has not started before, by its dry run, so that a slip ends all at once."""
    from megads.config.run_files import CONFIG
    from megads.errors import ConfigError

    new = [each for each in members if all_of or not (folder / each.name / CONFIG).is_file()]
    for first in range(0, len(new), CHECKS):
        started = []
        for member in new[first : first + CHECKS]:
            size = {"NGPU_PER_HOST": str(member.ranks)} if member.ranks else {"NHOSTS": str(member.hosts)}
            own = {**env, **member.settings, **size, "RUN_DIR": str(folder / member.name)}
            process = subprocess.Popen(
                [*command, "--dry-run"], env=own, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            started.append((member, process))
        for member, process in started:
            _, err = process.communicate()
            if process.returncode:
                lines = [line for line in err.splitlines() if line.strip()] or [f"exit code {process.returncode}"]
                for _, other in started:
                    other.kill()
                    other.wait()
                raise ConfigError(f"{member.name}: {lines[-1].removeprefix('megads: ')}")


def _at_once(places: Places, members: Sequence[Member]) -> int:
    """Return how many of the runs, taken in their order, have room at the same time."""
    from copy import deepcopy

    room = deepcopy(places)
    return sum(room.take(member) is not None for member in members)


def _size(member: Member) -> str:
    from megads.text.plural import plural

    return plural(member.ranks, "rank") if member.ranks else plural(member.hosts, "host")


def _show(asked: Ensemble, folder: Path) -> None:
    """Print the table of all runs."""
    from megads.errors import MegadsError
    from megads.monitor.report.campaign import read_campaign
    from megads.monitor.report.text import RUNS_HEAD, run_rows, table

    found, names = [], []
    for member in asked.members:
        try:
            found.append(read_campaign(folder / member.name))
            names.append(member.name)
        except MegadsError:  # it was never started, and has been reported
            continue
    click.echo("\n".join(table(run_rows(found, names), RUNS_HEAD)))
    click.echo(f"`megads report {folder}` has them with curves, `megads plot {folder}/*` the curves")
