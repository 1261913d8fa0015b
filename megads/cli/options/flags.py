"""Options that older toolkits have, made from the settings and only when one of them is used."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

import click

EPILOG = "Options of Megatron-LM and DeepSpeed, such as --sequence-parallel: `megads config --flags` lists them."


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
