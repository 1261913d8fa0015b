"""Options that take several words, as argparse's ``nargs="+"`` does."""

from __future__ import annotations

import click


class ManyWords(click.Command):
    """Takes ``--input a b c`` for ``--input a --input b --input c``: every option that may be given again."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each of its words."""
        many = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        spread: list[str] = []
        option = ""
        for word in [*args, "--"]:
            is_value = word == "-" or not word.startswith("-")
            if option and not is_value and spread[-1] == option:
                raise click.UsageError(f"Option {option!r} requires an argument", ctx)
            if option and is_value and spread[-1] != option:
                spread.append(option)
            if not is_value:
                option = word if word in many else ""
            spread.append(word)
        return super().parse_args(ctx, spread[:-1])
