"""What a command of Megatron-LM relies on where it says nothing: Megatron-LM's defaults, and its demands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

from megads.config.optimizers import OPTIMIZERS
from megads.config.setting import Origin
from megads.config.sources.flags import Given, flags
from megads.errors import ConfigError
from megads.families.table import FAMILIES
from megads.text.plural import listed

SETTING = "defaults"
MEGATRON, MEGADS = "megatron", "megads"
LAYER = Origin("megatron", "default")
PADDING, PADDING_FLAG = "model.vocab_multiple", "--make-vocab-size-divisible-by"
"""Megatron-LM multiplies what the option says by TP."""

DEFAULTS: Mapping[str, Any] = {
    "model.family": "gpt",
    "model.init_std": 0.02,
    "model.rope_theta": 10000.0,
    "model.vocab_multiple": 128,
    "train.dtype": "fp32",
    "train.train_tokens": 0,
    "train.eval_interval": 1000,
    "train.eval_iters": 100,
    "train.eval_at_start": False,
    "optim.lr_decay_style": "linear",
    "optim.lr_warmup_frac": 0.0,
    "optim.weight_decay": 0.01,
    "data.train_split": 969.0,
    "data.val_split": 30.0,
    "data.test_split": 1.0,
    "checkpoint.save_interval": 0,
    "log.log_interval": 100,
}
"""Megatron-LM's defaults of 2024 where ours, or those of our gpt family, are others."""

OF_ADAM: Mapping[str, Any] = {"optim.adam_beta2": 0.999, "optim.adam_eps": 1e-8}
OF_FP16: Mapping[str, Any] = {"optim.initial_loss_scale_power": 32}

SHAPE = ("model.num_layers", "model.hidden_size", "model.num_heads")
REQUIRED = (*SHAPE, "model.seq_length", "train.micro_batch", "optim.lr")
"""Settings that Megatron-LM demands, and one of these lengths; those of a task follow from its epochs."""
LENGTHS = {"train.train_iters", "train.train_samples", "train.train_tokens", "finetune.task"}


def is_megatron(has_preset: bool, given: Given, from_env: Given, from_file: Given) -> tuple[bool, Origin]:
    """Return whether Megatron-LM's defaults hold, and why.

    They hold when they are asked for, in the run whose file is read, and for a command that names
    no preset and gives the model's shape by Megatron-LM's options. A file that gives one is a preset here.
    """
    for source in (given, from_env, from_file):
        if SETTING in source:
            value, origin = source[SETTING]
            return value == MEGATRON, origin
    named = [given[name][1].detail for name in SHAPE if name in given and given[name][1].detail in flags()]
    if named and not has_preset and not from_file.keys() & set(SHAPE):
        return True, Origin("derived", f"{named[0]} and no preset")
    return False, Origin("default")


def defaults_for(value_of: Callable[[str], Any]) -> dict[str, Any]:
    """Return Megatron-LM's defaults by dotted name, without those that a run never looks at.

    Args:
        value_of: returns what the command says of a setting, or our default.
    """
    result = dict(DEFAULTS)
    if "ADAM_BETA2" in OPTIMIZERS[value_of("optim.optimizer")].settings:
        result |= OF_ADAM
    if value_of("train.dtype") == "fp16":
        result |= OF_FP16
    has_data = value_of("data.path") or value_of("data.file_list")
    if FAMILIES[value_of("model.family")].reads_sentences:
        return result
    if value_of("data.vocab_file") or (has_data and not value_of("data.tokenizer_model")):
        result["data.tokenizer_type"] = "GPT2BPETokenizer"
    return result


def refuse_missing(given: Set[str]) -> None:
    """Refuse a command without a number that Megatron-LM demands.

    Args:
        given: settings that the command, the environment, a file or a checkpoint gives.

    Raises:
        ConfigError: naming the options.
    """
    by_setting = {name: flag for flag, each in reversed(list(flags().items())) for name in each.gives}
    missing = [by_setting[name] for name in REQUIRED if name not in given]
    if not given & LENGTHS:
        missing.append("--train-iters")
    if missing:
        are, them = ("are", "them") if len(missing) > 1 else ("is", "it")
        raise ConfigError(
            f"{listed(missing)} {are} missing: Megatron-LM has no default for {them}; pass {them}, or name a --preset"
        )
