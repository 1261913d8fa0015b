"""``megads --version``: the version, the commit, the formats, and what it runs with. Imports none of that."""

from __future__ import annotations

import click

LIBRARIES = ("torch", "deepspeed")


def _show(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    import platform  # all other commands start sooner without these

    from megads.release.commit import own_commit
    from megads.release.versions import VERSION, summary

    click.echo(f"megads {VERSION}, commit {own_commit()}")
    click.echo(f"formats: {summary()}")
    click.echo(", ".join([f"Python {platform.python_version()}", *map(_library, LIBRARIES)]))
    ctx.exit()


def _library(name: str) -> str:
    from importlib import metadata

    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return f"no {name}"


version_option = click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show,
    help="Show the version, the commit, the versions of the formats, and those of Python, torch and DeepSpeed.",
)
