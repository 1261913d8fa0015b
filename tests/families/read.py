"""A config.json of each class of transformers, read as an import reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megads.config.schema import RunConfig
from megads.families.config_json import ConfigJson
from megads.families.family import HuggingFace

DECODER = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 32,
}
GPT2 = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 32, "vocab_size": 100}


def read(kind: HuggingFace, **changes: Any) -> Any:
    """Return the model that ``config.json`` of a class describes."""
    content = GPT2 if kind.model_type == "gpt2" else DECODER
    settings = kind.read(ConfigJson(Path("config.json"), {**content, **changes}))
    return RunConfig.model_validate({"model": settings}).model


def is_whole(kind: HuggingFace, model: Any) -> bool:
    """Return whether ``kind`` takes back a model that it described."""
    has_needs = all(getattr(model, name) in values for name, values in kind.needs.items())
    return kind.suits(model) and has_needs and not kind.misfit(model)
