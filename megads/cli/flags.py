"""Options that older toolkits have, made from the settings and only when one of them is used."""

from __future__ import annotations

from typing import Any

import click

EPILOG = "Options of Megatron-LM and DeepSpeed, such as --sequence-parallel: `megads config --flags` lists them."


class FlagCommand(click.Command):
    """A command that also takes every option of ``megads.config.flags``.

    The function gets them as ``flags``: pairs of an option and the word that follows it.
    They are not in ``--help``, which stays one screen and needs no settings.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``args``; see :class:`click.Command`."""
        own = {word for option in self.params for word in (*option.opts, "--help")}
        names = {word.partition("=")[0] for word in args if word.startswith("--")}
        made = _options() if names - own else {}
        args = _joined(args) if made else args
        self.params.extend(made.values())
        try:
            rest = super().parse_args(ctx, args)
        finally:
            self.params = [option for option in self.params if option not in made.values()]
        pairs: list[tuple[str, str]] = []
        for flag, option in made.items():
            value = ctx.params.pop(option.name or "")
            pairs += [(flag, "")] if value is True else [(flag, word) for word in value or ()]
        ctx.params["flags"] = tuple(pairs)
        return rest


def _options() -> dict[str, click.Option]:
    from megads.config.flags import flags

    made = {}
    for number, (name, flag) in enumerate(flags().items()):
        kind: dict[str, Any] = {"multiple": True, "type": str} if flag.takes_value else {"is_flag": True}
        made[name] = click.Option([name, f"flag_{number}"], hidden=True, **kind)
    return made


def _joined(args: list[str]) -> list[str]:
    """Return ``args`` with the words of an option that takes several made one."""
    from megads.config.flags import flags

    many = {name for name, flag in flags().items() if flag.takes_words}
    joined: list[str] = []
    option, words = "", 0
    for word in args:
        if word.startswith("-"):
            option, words = word if word in many else "", 0
        elif option:
            words += 1
        if words > 1:
            joined[-1] += f" {word}"
        else:
            joined.append(word)
    return joined


def flag_table() -> str:
    """Return every option with the settings it gives a value."""
    from megads.config.flags import flags
    from megads.config.tree import env_name

    rows = []
    for name, flag in flags().items():
        text = ", ".join(
            f"{env_name(setting)}={'V' if value is None else _text(value)}" for setting, value in flag.gives.items()
        )
        rows.append((f"{name} V" if flag.takes_value else name, text))
    width = max(len(left) for left, _ in rows)
    return "\n".join(f"{left:{width}}  {right}" for left, right in rows)


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
