"""The JSON file of ``--deepspeed_config``, as values of settings.

DeepSpeed and Megatron both hold batch, precision, clipping and ZeRO stage; here each is one
setting. A key that is a setting gives it its value, like an option of the command line, so
that an option which says something else is refused. Other keys of DeepSpeed are merged into
its dictionary (``megads.config.deepspeed.overrides``). Keys that DeepSpeed does not know either are
dropped, as it does, and reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from megads.config.deepspeed.keys import TAKEN, TOP_LEVEL, put, read_json
from megads.config.setting import Origin
from megads.config.sources.parse import did_you_mean
from megads.config.tree import read_value
from megads.errors import ConfigError

FLAGS = ("--deepspeed_config", "--deepspeed-config")
"""Names of the option."""

OVERRIDES = "deepspeed.config_overrides"
AUTO = "auto"
"""What Hugging Face's files say of a number that the trainer decides."""

OPTIMIZERS = {
    "adam": "adamw",  # its weight decay is decoupled unless adam_w_mode is false
    "adam with the decay in the gradient": "adam",
    "adamw": "adamw",
    "lamb": "ds.fusedlamb",
    "onebitlamb": "ds.onebitlamb",
    "lion": "lion",
    "muon": "muon",
}
"""DeepSpeed's names of optimizers in lower case -> ours."""

# Keys that show more, or that there is nothing to do for.
NO_EFFECT = (
    *("activation_checkpointing.number_checkpoints", "flops_profiler.top_modules", "flops_profiler.detailed"),
    *("flops_profiler.output_file", "optimizer.params.torch_adam", "bf16.loss_scale", "bfloat16.loss_scale"),
)
_PRECISIONS = {"fp16.enabled": "fp16", "bf16.enabled": "bf16", "bfloat16.enabled": "bf16"}
_DECOUPLED = "optimizer.params.adam_w_mode"
_OVERLAP = "zero_optimization.overlap_comm"

Values = list[tuple[str, Any, Origin]]


def read_deepspeed_file(path: str, flag: str, dtype: str | None) -> tuple[Values, list[str]]:
    """Return what a file of DeepSpeed gives settings, with origins, and notes.

    Args:
        flag: the option that named it.
        dtype: what ``--fp16`` or ``--bf16`` says.

    Raises:
        ConfigError: the file cannot be read, or a value is not the setting's.
    """
    shown = f"{flag} {path}"
    if path.lstrip().startswith("{"):
        raise ConfigError(f"{flag}: {path[:40]!r} is not the name of a file; DS_CONFIG_OVERRIDES takes JSON itself")
    content = read_json(path, shown)
    values: Values = []
    notes: list[str] = []
    rest: dict[str, Any] = {}
    leaves = dict(_leaves(content))
    if leaves.get(_DECOUPLED) in (True, False):
        decoupled = leaves.pop(_DECOUPLED)
        if not decoupled and str(leaves.get("optimizer.type")).lower() == "adam":
            leaves["optimizer.type"] = "adam with the decay in the gradient"
    for key, value in leaves.items():
        top = key.partition(".")[0]
        found = _settings_of(key, value, dtype, Origin("cli", f"{shown} {key}"))
        if found is not None:
            values += found
        elif top not in TOP_LEVEL:
            notes.append(f"{shown}: DeepSpeed has no key {top!r}{did_you_mean(top, TOP_LEVEL)}; it is ignored")
        else:
            put(rest, key, value)
    if any(name.startswith("recompute.") and value is True for name, value, _ in values):
        values.append(("recompute.engine", "deepspeed", Origin("cli", f"{shown} activation_checkpointing")))
    if rest:
        values.append((OVERRIDES, json.dumps(rest), Origin("cli", shown)))
    return values, list(dict.fromkeys(notes))


def _settings_of(key: str, value: Any, dtype: str | None, origin: Origin) -> Values | None:
    """Return the settings that a key is, none for one without effect, None for a key that is not a setting."""
    if value == AUTO or key in NO_EFFECT:
        return []
    if key in _PRECISIONS:
        return _precision(key, value, dtype, origin)
    if key == _OVERLAP:
        return [("parallel.ddp_impl", "torch" if value is True else "local", origin)]
    if key == "optimizer.type":
        return [("optim.optimizer", _optimizer(value, origin), origin)]
    if key == "optimizer.params.betas" and isinstance(value, list) and len(value) == 2:
        names = ("optim.adam_beta1", "optim.adam_beta2")
        return [(name, read_value(name, each, origin.detail), origin) for name, each in zip(names, value, strict=True)]
    return [(TAKEN[key], read_value(TAKEN[key], value, origin.detail), origin)] if key in TAKEN else None


def _precision(key: str, value: Any, dtype: str | None, origin: Origin) -> Values:
    kind = _PRECISIONS[key]
    if value is True:
        return [("train.dtype", kind, origin)]
    if dtype == kind:
        raise ConfigError(f"--{kind} and {origin.detail}=false contradict each other; drop one of them")
    return []


def _optimizer(value: Any, origin: Origin) -> str:
    if (name := OPTIMIZERS.get(str(value).lower())) is None:
        known = ", ".join(each for each in OPTIMIZERS if " " not in each)
        raise ConfigError(f"{origin.detail}: {value!r} is not one of {known}; drop it and pass --optimizer")
    return name


def _leaves(content: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted key that holds no object."""
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
