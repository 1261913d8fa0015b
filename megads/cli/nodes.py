"""``megads nodes``: hosts that are known for failures."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import click

from megads.cli.options.request import checkout


@click.command()
@click.option("--machine", default="", help="Of which machine; empty: this one.")
@click.option("--forget", multiple=True, metavar="HOST", help="What happened on HOST no longer counts: repaired.")
def nodes(machine: str, forget: tuple[str, ...]) -> None:
    """List the hosts on which runs failed, and which ones are excluded: megads nodes --forget nid001234"""
    from megads.cluster.machine import machine_name
    from megads.errors import ConfigError
    from megads.launch.nodes.memory import BAD, PLACE, NodeMemory, short
    from megads.storage.reading import read_bytes

    name = machine or machine_name(socket.gethostname(), os.environ, Path(checkout()))
    memory = NodeMemory.of(name, os.environ)
    try:
        read_bytes(memory.path)
    except FileNotFoundError:  # nothing has failed yet
        pass
    except OSError as error:
        given = f"{PLACE}=" if os.environ.get(PLACE) else ""
        raise ConfigError(f"{given}{memory.path}: cannot be read: {error.strerror}; it should be a file") from None
    known = {record.host for record in memory.records()}
    for host in forget:
        if short(host) not in known:
            raise ConfigError(f"--forget {host}: nothing is known of it on machine {name} ({memory.path})")
        if problem := memory.note(host, "forgotten"):
            raise ConfigError(f"--forget {host}: {memory.path} cannot be written: {problem}")
    records = memory.records()
    for record in records:
        click.echo(f"{record.host:16} {'excluded' if record.is_bad else 'used':8} {record.weight:5.2f}  {record.why}")
    if not records:
        click.echo(f"nothing speaks against a host of machine {name} ({memory.path})")
    else:
        click.echo(f"a host is excluded from {BAD:g} on where there is another one; half of it fades in a week")
