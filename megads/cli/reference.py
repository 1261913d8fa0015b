"""Writes docs/commands.md from the commands' declarations: ``python -m megads.cli.reference > docs/commands.md``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

import click

from megads.cli import COMMANDS, HIDDEN, main
from megads.text.markdown import cell

TITLE = """# Commands

Written by `python -m megads.cli.reference` from the declarations in `megads/cli`; do not edit. `megads COMMAND --help`
prints the same. Commands that take settings read them from the environment and from `--set`
([settings.md](settings.md)), and take the options of Megatron-LM and DeepSpeed, too
([megatron-options.md](megatron-options.md)). Exit codes are in [running.md](running.md).
"""


def commands_page() -> str:
    """Return docs/commands.md."""
    lines = [TITLE, "| command | does |", "|---|---|"]
    lines += [
        f"| [`megads {name}`](#megads-{name}) | {cell(says)} |"
        for name, (_, says) in COMMANDS.items()
        if name not in HIDDEN
    ]
    root = click.Context(main, info_name="megads", help_option_names=["-h", "--help"])
    for name, command in _below(main, root):
        lines += _section(command, name, root, 2)
    return "\n".join(lines) + "\n"


def _section(command: click.Command, name: str, parent: click.Context, level: int) -> Iterator[str]:
    """Yield the lines about a command, and about those of its group."""
    context = click.Context(command, info_name=name, parent=parent)
    path = _path(context)
    yield from ("", f"{'#' * level} {path}", "")
    yield from ("```text", " ".join([path, *command.collect_usage_pieces(context)]), "```", "")
    yield from _help(command)
    rows = [each.get_help_record(context) for each in command.params if isinstance(each, click.Option)]
    shown = [row for row in rows if row]
    if shown:
        yield from ("| option | |", "|---|---|")
        yield from (f"| {_code(words)} | {cell(says)} |" for words, says in shown)
    for below, found in _below(command, context):
        yield from _section(found, below, context, level + 1)


def _path(context: click.Context) -> str:
    """Return the words that name a command; click's own path has the arguments of the one above, too."""
    above = f"{_path(context.parent)} " if context.parent else ""
    return f"{above}{context.info_name}"


def _below(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands of a group, and those of a command whose first word may name one."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None, name
            yield name, found
    elif hasattr(command, "below"):
        yield from command.below().items()


def _help(command: click.Command) -> Iterator[str]:
    """Yield the paragraphs of a command's help; those that click must not wrap stay as they are."""
    text = "\n\n".join(filter(None, (inspect.cleandoc(command.help or ""), command.epilog)))
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("\b"):
            yield from ("```text", *paragraph.splitlines()[1:], "```", "")
        else:
            yield from (cell(paragraph), "")


def _code(words: str) -> str:
    return f"`{words}`".replace("|", r"\|")


if __name__ == "__main__":
    sys.stdout.write(commands_page())
