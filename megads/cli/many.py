"""Options that take several words, as argparse's ``nargs="+"`` does."""

from __future__ import annotations

import click


class ManyWords(click.Command):
    """Takes ``--input a b c`` for ``--input a --input b --input c``: every option that may be given again."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each of its words."""
        many = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        spread: list[str] = []
        last = ""
        for word in args:
            if word.startswith("-") and word != "-":
                last = word if word in many else ""
                spread.append(word)
            elif last and spread[-1] != last:
                spread += [last, word]
            else:
                spread.append(word)
        return super().parse_args(ctx, spread)
