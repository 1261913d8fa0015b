"""Writes the tables of docs/megatron-options.md: ``python -m megads.cli.options.page docs/megatron-options.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from megads.cli.options.request import value_text
from megads.config.deepspeed.json_file import NO_EFFECT
from megads.config.deepspeed.keys import TAKEN
from megads.config.sources.config_file import SHARES
from megads.config.sources.flags import flags, takes_of
from megads.config.sources.megatron_defaults import DEFAULTS, OF_ADAM, OF_FP16, REQUIRED
from megads.config.sources.other_options import NEEDS, OPTIONS, Option
from megads.config.tree import env_name

TABLES = "<!-- The tables from here on are written by `python -m megads.cli.options.page PAGE`; do not edit. -->"


def page(written: str) -> str:
    """Return the page ``written`` with new tables; the text above them stays."""
    intro = written.partition(TABLES)[0] + TABLES + "\n"
    return "\n".join([intro, *_defaults(), *_settings(), *_without_effect(), *_rejected(), *_deepspeed()]) + "\n"


def _table(*head: str) -> list[str]:
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _options_of(name: str) -> str:
    return ", ".join(f"`{flag}`" for flag, each in flags().items() if name in each.gives) or "-"


def _defaults() -> Iterator[str]:
    yield from _table("setting", "Megatron-LM's default", "option")
    rows: list[tuple[Mapping[str, object], str]] = [(DEFAULTS, ""), (OF_ADAM, " (Adam)"), (OF_FP16, " (fp16)")]
    for values, when in rows:
        for name, value in values.items():
            options = "`--split`" if name in SHARES else _options_of(name)
            yield _row(f"`{env_name(name)}`", f"{value_text(value)}{when}", options)
    yield ""
    missing = ", ".join(_options_of(name).partition(",")[0] for name in REQUIRED)
    yield "The gpt family's other defaults are Megatron-LM's. Required, as there:"
    yield f"{missing},"
    yield "and a length: `--train-iters`, `--train-samples` or `--train-tokens`. With `--vocab-file`, or with data and"
    yield "no `--tokenizer-model`, the tokenizer is GPT2BPETokenizer, which is pretrain_gpt.py's default."
    yield ""


def _settings() -> Iterator[str]:
    yield "## Settings"
    yield ""
    yield from _table("option", "settings")
    for name, flag in flags().items():
        words = {"": "", "value": " V", "values": " V ..."}[takes_of(name)]
        gives = ", ".join(f"`{env_name(setting)}={value_text(value)}`" for setting, value in flag.gives.items())
        yield _row(f"`{name}{words}`", gives)
    yield ""
    for name, need in NEEDS.items():
        yield f"* `{name}` {need.why}."
    yield ""


def _grouped(rows: Mapping[str, Option]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for name, option in rows.items():
        so_here = " ".join(sorted(option.so_here, key=len)[:1])
        shown = f"`{name}`" + (f" (except `{so_here}`)" if so_here else "")
        reasons.setdefault(option.why, []).append(shown)
    yield from _table("why", "options")
    for why, names in reasons.items():
        yield _row(why, ", ".join(names))
    yield ""


def _without_effect() -> Iterator[str]:
    yield "## Without effect"
    yield ""
    yield from _grouped({name: option for name, option in OPTIONS.items() if not option.is_rejected})


def _rejected() -> Iterator[str]:
    yield "## Rejected"
    yield ""
    yield from _grouped({name: option for name, option in OPTIONS.items() if option.is_rejected})


def _deepspeed() -> Iterator[str]:
    yield "## DeepSpeed's file"
    yield ""
    yield "`--deepspeed_config FILE` gives these settings their values; an option that says something else is an error."
    yield "`auto` says nothing. DeepSpeed's other keys are merged into its dictionary, as `DS_CONFIG_OVERRIDES` does; a"
    yield "key that DeepSpeed does not have is dropped and reported."
    yield ""
    yield from _table("key", "setting")
    for key, name in TAKEN.items():
        yield _row(f"`{key}`", f"`{env_name(name)}`")
    yield _row("`fp16.enabled`, `bf16.enabled`, `bfloat16.enabled`", "`DTYPE`")
    yield _row("`zero_optimization.overlap_comm`", "`DDP_IMPL`")
    yield _row("`optimizer.type`, `optimizer.params.betas`", "`OPT`, `ADAM_BETA1`, `ADAM_BETA2`")
    yield ""
    yield f"Without effect: {', '.join(f'`{key}`' for key in NO_EFFECT)}."


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text(encoding="utf8")), encoding="utf8")
