"""A base and adapters of it, of any layouts, with the weights that both make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megads.checkpoint.format.folders import CheckpointRef
from megads.checkpoint.format.manifest import read_manifest
from megads.checkpoint.format.shard_layout import parameters_of, saved_parameters
from megads.checkpoint.lora.base import NOTE, note_of
from megads.checkpoint.resume.compatibility import shape_of
from megads.config.schema import ModelConfig
from tests.checkpoint.made import Numbers, make, numbers_of
from tests.models.shapes import LLAMA_GQA

ADAPTED = LLAMA_GQA.model_copy(update={"lora_rank": 2, "lora_alpha": 5.0})


def make_both(
    folder: Path, model: ModelConfig = ADAPTED, degree: int = 2
) -> tuple[CheckpointRef, CheckpointRef, dict[str, NDArray[Any]]]:
    """Return the adapters, the base, and the merged weights of all targets, which are computed here."""
    plain = model.model_copy(update={"lora_rank": 0})
    weights = _small(numbers_of(parameters_of(plain), ("weight",), seed=1))
    base = make(folder / "base", 7, tensors=parameters_of(plain), numbers=weights, degree=degree, model=shape_of(plain))
    found = CheckpointRef(base, read_manifest(base))
    numbers = _small(numbers_of(saved_parameters(model), seed=2))
    adapters = make(
        folder / "adapters",
        50,
        tensors=saved_parameters(model),
        numbers=numbers,
        degree=1,
        model=shape_of(model),
        settings={"model": model.model_dump(), "train": {"dtype": "fp32"}},
        about={NOTE: note_of(found)},
    )
    merged = {name: each.copy() for name, each in weights["weight"].items()}
    for name, weight in merged.items():
        prefix = name.removesuffix("weight")
        if f"{prefix}lora_a" in numbers["weight"] and model.lora_targets == "all":
            a, b = (numbers["weight"][f"{prefix}lora_{which}"].astype(np.float64) for which in "ab")
            merged[name] = (weight + dense(model, prefix, a, b, weight.shape)).astype(np.float32)
    return CheckpointRef(adapters, read_manifest(adapters)), found, merged


def _small(numbers: Numbers) -> Numbers:
    return {kind: {name: np.float32(0.2) * each for name, each in found.items()} for kind, found in numbers.items()}


def dense(
    model: ModelConfig, prefix: str, a: NDArray[Any], b: NDArray[Any], shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Return what adapters of all targets add to a weight: with an A for each part, or one for all."""
    q, kv, inner = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim, model.ffn_hidden_size
    parts = [q, kv, kv] if "qkv" in prefix else [inner, inner] if "gate_up" in prefix else [shape[0]]
    ends = np.cumsum([0, *parts])
    rank, scale = model.lora_rank, model.lora_alpha / model.lora_rank
    every = [a] * len(parts) if len(a) == rank else np.split(a, len(parts))
    return np.concatenate([scale * b[ends[i] : ends[i + 1]] @ each for i, each in enumerate(every)])
