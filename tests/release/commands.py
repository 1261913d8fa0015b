"""Command lines in documents, parsed as the command does and not run."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
from collections.abc import Iterator
from unittest import mock

import click

from megads.cli import main
from megads.config.sources.env_names import PROGRAM_NAMES, SYSTEM, setting_names
from megads.config.sources.flags import read_flags
from megads.config.tree import fields
from megads.errors import MegadsError

PLACEHOLDERS = {"...", "ARGS"}
START = {"megads": [], "./megads.sh": [], "train_7B.sh": ["train", "--preset", "7B"], "launchers/train.sh": ["train"]}
"""Program or script -> what it gives ``megads`` first."""
LAUNCHERS = ("mpiexec", "mpirun", "srun", "torchrun", "deepspeed", "qsub", "sbatch")


@functools.cache
def options_of_commands() -> frozenset[str]:
    """Return every option of every command."""
    found: set[str] = set()

    def add(command: click.Command, context: click.Context) -> None:
        found.update(name for each in command.params if isinstance(each, click.Option) for name in each.opts)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                add(below, click.Context(below, info_name=name, parent=context))

    add(main, click.Context(main, info_name="megads"))
    return frozenset(found)


def parse(words: list[str], *, whole: bool = True) -> Iterator[str]:
    """Yield what is wrong with the arguments of ``megads``: command, options, values, settings.

    Args:
        words: what follows ``megads``.
        whole: whether it is a command as it is typed; else what it needs may be missing.
    """
    is_part = not whole or bool(PLACEHOLDERS & set(words))
    try:
        # Files of an example need not exist.
        with mock.patch.object(click.Path, "convert", lambda self, value, param, ctx: value):
            context = _context([word for word in words if word not in PLACEHOLDERS])
        read_flags(context.params.get("flags", ()))
        for pair in context.params.get("pairs") or ():
            if pair.partition("=")[0] not in fields():
                yield f"--set {pair}: no such setting"
    except click.exceptions.NoArgsIsHelpError:
        if not is_part:
            yield "without arguments it prints its help"
    except click.exceptions.Exit:
        pass  # --version or --help, which print and end
    except click.exceptions.NoSuchOption as error:
        yield f"No such option {error.option_name}"
    except (click.UsageError, MegadsError) as error:
        text = error.format_message() if isinstance(error, click.UsageError) else str(error)
        if not (is_part and re.search(r"^Missing|requires an argument|needs a value", text)):
            yield text


def _context(words: list[str]) -> click.Context:
    """Return what click makes of the arguments of ``megads``, at the command that they name."""
    command: click.Command = main
    name, context = "megads", None
    while True:
        context = command.make_context(name, words, parent=context)
        if not isinstance(command, click.Group):
            return context
        first, below, words = command.resolve_command(context, [*context._protected_args, *context.args])
        assert first is not None
        assert below is not None
        name, command = first, below


def commands(line: str) -> Iterator[tuple[list[str], list[str], list[str]]]:
    """Yield of each command of a line: names of variables in front, words of a launcher, arguments of ``megads``.

    The arguments are empty for a command of another program, which is in the second list then.
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
    lexer.commenters, lexer.whitespace_split = "#", True
    for is_break, group in itertools.groupby(lexer, lambda word: word in ("&&", "||", "|", ";", "&")):
        words = [] if is_break else list(group)
        names = []
        while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.DOTALL):
            names.append(words.pop(0).partition("=")[0])
        at = _place_of_megads(words)
        if at is not None:
            yield names, words[:at], [*START[words[at]], *words[at + 1 :]]
        elif words and words[-1].startswith("megads "):  # sbatch --wrap "megads train"
            yield names, words[:-1], words[-1].split()[1:]
        elif words:
            yield names, words, []


def _place_of_megads(words: list[str]) -> int | None:
    """Return where the program or a script stands: at the beginning, or behind a launcher."""
    places = [number for number, word in enumerate(words) if word in START]
    is_module = words[1:3] == ["-m", "megads"] and words[0].startswith("python")
    is_other = not words or not (is_module or words[0] in (*START, "bash", *LAUNCHERS))
    return places[0] if places and not is_other else None


def unknown_names(names: list[str]) -> list[str]:
    """Return those of the variables that no setting and no part of megads reads."""
    return [name for name in names if name not in {*setting_names(), *PROGRAM_NAMES, *SYSTEM}]
