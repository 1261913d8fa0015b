"""Commands that take settings, and how a command line and the environment become a request.

Click does not know all of their options: those of other toolkits, and those that take several words.
"""

from __future__ import annotations

import difflib
import gc
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megads.storage.resources import files_root

if TYPE_CHECKING:
    from megads.launch.request import TrainRequest

EPILOG = "Options of Megatron-LM and DeepSpeed, such as --sequence-parallel: `megads config --flags` lists them."

LOCAL_RANK = ("--local_rank", "--local-rank")
ignores_local_rank = click.option(
    *LOCAL_RANK, hidden=True, expose_value=False, help="Local rank of this process, as launchers pass it; not read."
)


def settings_command(function: Callable[..., None]) -> click.Command:
    """Make a command that takes settings: ``--preset``, ``--set``, and the options of other toolkits.

    The function gets ``request``, which returns the :class:`TrainRequest`: making it loads the settings.
    """

    @wraps(function)
    def call(preset: str | None, pairs: tuple[str, ...], flags: tuple[tuple[str, str], ...], **others: Any) -> None:
        function(request=partial(request_of, preset, pairs, flags), **others)

    overrides = click.option(
        "--set", "pairs", multiple=True, metavar="SECTION.KEY=VALUE", help="Override one setting; may be repeated."
    )
    preset = click.option("--preset", metavar="NAME", help="Model preset; `megads config --presets` lists them.")
    return click.command(cls=FlagCommand, epilog=EPILOG)(preset(overrides(call)))


def request_of(preset: str | None, pairs: tuple[str, ...], flags: tuple[tuple[str, str], ...] = ()) -> TrainRequest:
    """Return what the user asked for: this command line in this environment."""
    import socket  # `megads --help` loads this module too, and answers sooner without

    from megads.storage.reading import no_collection

    with no_collection():
        from megads.launch.request import TrainRequest
    # Modules stay until the end; looking through all that they hold takes as long as importing numpy.
    gc.freeze()
    return TrainRequest(
        preset=preset,
        pairs=pairs,
        env=dict(os.environ),
        hostname=socket.gethostname(),
        root=checkout(),
        python=sys.executable,
        words=_without_local_rank(sys.argv[1:]),
        flags=flags,
    )


def _without_local_rank(words: list[str]) -> tuple[str, ...]:
    """Return ``words`` without the number that DeepSpeed's launcher gives to every rank."""
    after = {number + 1 for number, word in enumerate(words) if word in LOCAL_RANK}
    return tuple(
        word for number, word in enumerate(words) if number not in after and word.partition("=")[0] not in LOCAL_RANK
    )


def checkout() -> Path:
    """Return the folder whose envs/ and data-lists/ are used: MEGADS_ROOT, else the checkout or what a wheel has."""
    return files_root(os.environ)


def absolute(text: str | Path) -> Path:
    """Return a path as it is from the root: with a name, though it be ``.``, and with the home for ``~``."""
    return Path(os.path.abspath(os.path.expanduser(text)))


def show_notes(notes: Iterable[str]) -> None:
    """Print a line to stderr for each note that is not empty, without the secrets that it may quote."""
    from megads.text.secrets import hidden

    for note in notes:
        if note:
            click.echo(f"megads: {hidden(note, os.environ)}", err=True)


class FlagCommand(click.Command):
    """A command that also takes every option of ``megads.config.sources.flags``.

    The function gets them as ``flags``: pairs of an option and the word that follows it.
    They are not in ``--help``, which stays one screen and needs no settings.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``args``; see :class:`click.Command`."""
        takes_word = {opt: not getattr(option, "is_flag", True) for option in self.params for opt in option.opts}
        own = {**takes_word, "--help": False}
        names = {word.partition("=")[0] for word in args if word.startswith("--")}
        pairs: list[tuple[str, str]] = []
        if names - own.keys():
            from megads.config.sources.flags import split_flags

            pairs, args = split_flags(args, own)
            _refuse_unknown(ctx, args, own)
        try:
            rest = super().parse_args(ctx, list(args))
        except click.UsageError:
            _refuse_assignment(args)
            raise
        ctx.params["flags"] = tuple(pairs)
        return rest


def _refuse_unknown(ctx: click.Context, args: list[str], own: Mapping[str, bool]) -> None:
    """Name the options that an unknown one may mean, or is the beginning of: argparse would complete it."""
    from megads.config.sources.flags import flags
    from megads.config.sources.other_options import OPTIONS

    before = ""
    for word in args:
        name = word.partition("=")[0]
        if word == "--":
            return
        if name.startswith("--") and name not in own and not own.get(before):
            known = sorted({*own, *flags(), *OPTIONS})
            longer = [each for each in known if each.startswith(name)]
            close = longer or difflib.get_close_matches(name, known, n=3, cutoff=0.75)
            raise click.NoSuchOption(name, possibilities=close[:3], ctx=ctx)
        before = word


def _refuse_assignment(args: list[str]) -> None:
    """Say where a setting belongs that stands behind the command, as ``make`` takes it."""
    from megads.errors import ConfigError

    for word in args:
        if re.match(r"[A-Z][A-Z0-9_]*=", word):
            raise ConfigError(f"{word} is an argument, and settings are variables: put {word} in front of the command")


class ManyWords(click.Command):
    """Takes ``--input a b c`` for ``--input a --input b --input c``, as argparse's ``nargs="+"`` does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each of its words."""
        many = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        repeated: list[str] = []
        option = ""
        for word in [*args, "--"]:
            is_value = word == "-" or not word.startswith("-")
            if option and not is_value and repeated[-1] == option:
                raise click.UsageError(f"Option {option!r} requires an argument", ctx)
            if option and is_value and repeated[-1] != option:
                repeated.append(option)
            if not is_value:
                option = word if word in many else ""
            repeated.append(word)
        return super().parse_args(ctx, repeated[:-1])


def flag_table() -> str:
    """Return every option with the settings it gives a value."""
    from megads.config.sources.flags import flags
    from megads.config.tree import env_name

    rows = []
    for name, flag in flags().items():
        text = ", ".join(f"{env_name(setting)}={value_text(value)}" for setting, value in flag.gives.items())
        rows.append((f"{name} V" if flag.takes_value else name, text))
    width = max(len(left) for left, _ in rows)
    return "\n".join(f"{left:{width}}  {right}" for left, right in rows)


def value_text(value: object) -> str:
    """Return what an option gives a setting, V for the word that follows it."""
    from megads.config.setting import Weak, Word

    if value is None or isinstance(value, Word):
        return "V"
    value = value.value if isinstance(value, Weak) else value
    return str(int(value)) if isinstance(value, bool) else str(value)
