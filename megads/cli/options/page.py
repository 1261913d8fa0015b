"""Writes docs/megatron-options.md: ``python -m megads.cli.options.page > docs/megatron-options.md``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from megads.cli.options.flags import value_text
from megads.config.deepspeed.json_file import NO_EFFECT, TAKEN
from megads.config.sources.flags import flags, takes_of
from megads.config.sources.megatron_defaults import DEFAULTS, OF_ADAM, OF_FP16, REQUIRED
from megads.config.sources.other_options import NEEDS, OPTIONS, Option
from megads.config.sources.resolve import SHARES
from megads.config.tree import env_name

INTRO = """# Megatron-LM's command lines

<!-- Written by `python -m megads.cli.options.page`; do not edit. -->

`megads train ARGS` takes the arguments of `python pretrain_gpt.py ARGS` of Megatron-LM (state of May 2024),
Megatron-DeepSpeed and BigScience's fork, also behind `torchrun -m`, `deepspeed --module`, `srun` and `mpiexec`. An
option means what it means there. Every option of the three is one of these:

* a setting (first table): the same as its variable and as `--set`, and above the environment;
* without effect here (second table): accepted, and reported in one line for each reason;
* rejected (third table), because ignoring it would train something else: one line says what to use instead.

`examples/` has known command lines as scripts.

```bash
$ megads train --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 4 \
--global-batch-size 8 --train-iters 2 --lr 1e-4 --optimizer adam --eval-iters 1 --split 8,1,1 --swiglu \
--disable-bias-linear --dry-run
```

## Rules

* Names are written out. argparse completes `--num-layer`; here it is an error that names `--num-layers`, since the
  beginning of one name today is the beginning of two tomorrow.
* An option that is given twice has the value of the last one, as in argparse; this is reported. Two *different* options
  that give one setting two values are an error (`--fp16 --bf16`).
* `--optimizer adam` is AdamW, as in Megatron-LM. `OPT=adam` stays Adam with the decay in the gradient.
* `--swiglu` without `--ffn-hidden-size` has 8/3 of the hidden size, rounded down to a multiple of 64. GELU is the tanh
  form, and the exact one with `--no-bias-gelu-fusion`.
* `--make-vocab-size-divisible-by N` pads the vocabulary to a multiple of N x TP. Padding takes no part in the loss (in
  Megatron-LM it does), and a checkpoint resumes under another TP.
* `--load` of a folder without a checkpoint is an error, unless it is the folder of `--save`. Megatron-LM starts from
  random weights there unless it has `--exit-on-missing-checkpoint`.
* A command of Megatron-LM is named by the last part of `--save`: `--save checkpoints/small` has its log and metrics in
  `runs/small`, unless `RUN_NAME` names it.
* `--train-tokens` besides `--train-samples` or `--train-iters` is a second limit, as in Megatron-DeepSpeed. The first
  that is reached ends the run, and the learning rate decays over the samples or iterations.
* `--save-interval` has no default: without it only the end of the run is saved.

## Defaults

A command that names no preset and gives the model's shape by these options (`--num-layers`, `--hidden-size` or
`--num-attention-heads`) relies on Megatron-LM's defaults. They hold on every machine: its own settings are ignored.
`--megatron-defaults` or `MEGADS_DEFAULTS=megatron` asks for them with a preset, and `MEGADS_DEFAULTS=megads` for ours
without one. `--config` keeps those of the run whose `config.yaml` it names; a file of your own that gives the model's
shape counts as a preset. The banner's line `defaults` says so, and `megads config` shows the origin `megatron default`.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([INTRO, *_defaults(), *_settings(), *_without_effect(), *_rejected(), *_deepspeed()]) + "\n"


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
    click.echo(page(), nl=False)
