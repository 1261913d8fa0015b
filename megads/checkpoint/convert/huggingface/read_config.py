"""From ``config.json`` to our settings. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from megads.checkpoint.convert.huggingface.read_tensors import read_json
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError
from megads.families.config_json import ConfigJson
from megads.families.table import CLASSES, family_of

CONFIG = "config.json"

KEPT = ("family", "seq_length", "init_std", "hidden_dropout", "attention_dropout")
"""Settings of the model that do not decide what its weights mean."""


@dataclass(frozen=True)
class Described:
    """A folder's model in our settings, and what else its ``config.json`` says.

    Attributes:
        architecture: class of transformers.
        model: derived.
        more: what only an export needs.
        longest: tokens of a sample that attention without a window computes alike; 0: any.
    """

    architecture: str
    model: ModelConfig
    more: Mapping[str, Any]
    longest: int = 0


def describe(folder: Path, vocab_multiple: int) -> Described:
    """Return what the ``config.json`` of ``folder`` describes.

    Args:
        folder: of Hugging Face.
        vocab_multiple: to which our vocabulary is padded.

    Raises:
        CheckpointError: it is no such folder, or of a model that ours cannot compute; the message names what.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(_no_config(folder))
    config = ConfigJson(path, read_json(path))
    architecture = _architecture(config)
    config.refuse("quantization_config", "quantised weights; import the model it was made from")
    settings = {"family": family_of(architecture), **CLASSES[architecture].read(config)}
    try:
        model = ModelConfig(vocab_multiple=vocab_multiple, **settings)
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(f"{path}: {first['loc'][0]} = {first['input']!r:.40}: {first['msg'].lower()}") from None
    if model.num_heads % model.num_kv_heads:
        raise config.error(f"{model.num_heads} heads cannot share {model.num_kv_heads} key/value heads")
    window = CLASSES[architecture].window(config)
    more = {"max_position_embeddings": model.seq_length, "sliding_window": window}
    kept = {name: getattr(model, name) for name in KEPT}
    return Described(architecture, model, {**more, "settings": kept}, window or 0)


def _no_config(folder: Path) -> str:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "no such folder"
        return f"{folder}: {what}; pass the local folder of a model, nothing is downloaded"
    if (folder / "params.json").is_file() or any(folder.glob("consolidated.*")):
        return (
            f"{folder}: is Meta's own form of the weights; fetch the model's config.json and *.safetensors, "
            "or convert it with transformers' convert_llama_weights_to_hf.py"
        )
    if (folder / "adapter_config.json").is_file():
        return f"{folder}: is an adapter, not a model; merge it into its model first (peft: merge_and_unload)"
    return f"{folder}: has no {CONFIG}; it is not a folder of a Hugging Face model"


def _architecture(config: ConfigJson) -> str:
    named = config.words("architectures")
    if not named:
        named = [name for name, each in CLASSES.items() if each.model_type == config.get("model_type", "")]
    for name in named:
        if name in CLASSES:
            return name
    what = ", ".join(named) or f"model_type {config.get('model_type', 'none')}"
    raise config.error(f"the architecture {what} is not supported; {', '.join(CLASSES)} are")
