"""From a checkpoint of adapters to a folder that ``PeftModel.from_pretrained`` reads. No torch."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megads.checkpoint.convert.huggingface.config import architecture_of
from megads.checkpoint.convert.huggingface.dtypes import pack
from megads.checkpoint.convert.huggingface.write_shards import SINGLE, Outgoing, write_shards
from megads.checkpoint.convert.peft.names import CONFIG, WEIGHTS, Module, modules_of, short_names
from megads.checkpoint.format.commit import new_folder
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.lora.base import is_adapters
from megads.checkpoint.resume.compatibility import HF, model_of
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError
from megads.families.lora import PARTS, A, Adapter, B, adapter_of
from megads.families.table import ALL_CLASSES

_NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class Factors:
    """The adapter of one of peft's modules: ``B @ A`` times its alpha over its rank."""

    module: Module
    layer: int
    a: NDArray[np.float32]
    b: NDArray[np.float32]


def export_adapters(reader: Reader, final: Path, *, dtype: str = "fp32", base: str = "") -> list[str]:
    """Write adapters as peft reads them, and return its ``target_modules``. The folder appears whole or not at all.

    Args:
        reader: of a checkpoint of adapters.
        final: the new folder.
        dtype: of the numbers: fp32, bf16 or fp16.
        base: what the folder names as the model that they are for.

    Raises:
        CheckpointError: it holds no adapters, no class of transformers computes the model, or it cannot be written.
    """
    if not is_adapters(reader.manifest):
        raise CheckpointError(f"{reader.path}: holds no adapters (LORA_RANK); `megads checkpoint export-hf` exports it")
    model = model_of(reader.path, reader.manifest)
    wanted = str(reader.manifest.about.get(HF, {}).get("architecture", ""))
    row = ALL_CLASSES[architecture_of(model.model_copy(update={"lora_rank": 0}), wanted)]
    chosen = [each for each in modules_of(row) if _has(model, each)]
    found = [_factors(reader, model, module, layer) for layer in range(model.num_layers) for module in chosen]
    outgoing = []
    for each in found:
        for which, numbers in (("lora_A", each.a), ("lora_B", each.b)):
            name = each.module.tensor(row, each.layer, which)
            outgoing.append(Outgoing(name, numbers.shape, lambda numbers=numbers: [pack(numbers, dtype)]))  # type: ignore[misc]
    targets = short_names(chosen, row)
    with new_folder(final) as folder:
        write_shards(folder, sorted(outgoing, key=lambda each: each.name), dtype, _NO_LIMIT, lambda done, total: None)
        os.replace(folder / SINGLE, folder / WEIGHTS)
        content = {
            **_config(model, targets, found),
            "base_model_name_or_path": base,
            "fan_in_fan_out": row.is_transposed,
        }
        (folder / CONFIG).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf8")
    return targets


def _config(model: ModelConfig, targets: list[str], found: list[Factors]) -> dict[str, Any]:
    # peft multiplies by alpha / rank; where a module joins several of our adapters, both are as many times larger.
    joined = {each.module.name: len(each.a) // model.lora_rank for each in found if len(each.a) > model.lora_rank}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": model.lora_rank,
        "lora_alpha": model.lora_alpha,
        "lora_dropout": model.lora_dropout,
        "target_modules": targets,
        "rank_pattern": {name: times * model.lora_rank for name, times in joined.items()},
        "alpha_pattern": {name: times * model.lora_alpha for name, times in joined.items()},
        "bias": "none",
        "inference_mode": True,
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
    }


def _adapter(model: ModelConfig, module: Module) -> Adapter | None:
    return adapter_of(model, module.projection)


def _has(model: ModelConfig, module: Module) -> bool:
    adapter = _adapter(model, module)
    return adapter is not None and not set(module.parts).isdisjoint(adapter.parts)


def _factors(reader: Reader, model: ModelConfig, module: Module, layer: int) -> Factors:
    """Return the adapter of a module of one layer: a part of ours, all of it, or several side by side."""
    adapter, prefix = _adapter(model, module), f"layers.{layer}.{module.projection}"
    assert adapter is not None
    a, b = reader.whole(f"{prefix}.{A}"), reader.whole(f"{prefix}.{B}")
    if adapter.is_shared or len(PARTS[module.projection]) == 1:
        return Factors(module, layer, a, b)
    rank, sizes = model.lora_rank, reader.cut(f"{prefix}.{B}").parts
    firsts = np.cumsum((0, *sizes))
    factors = {
        part: (a[i * rank : (i + 1) * rank], b[firsts[i] : firsts[i + 1]]) for i, part in enumerate(adapter.parts)
    }
    mine = [part for part in module.parts if part in factors]
    if len(module.parts) == 1:
        return Factors(module, layer, *factors[mine[0]])
    heights = _part_sizes(model, module.projection)
    whole = np.zeros((sum(heights), rank * len(mine)), np.float32)
    for i, part in enumerate(mine):
        first = sum(heights[:part])
        whole[first : first + heights[part], i * rank : (i + 1) * rank] = factors[part][1]
    return Factors(module, layer, np.concatenate([factors[part][0] for part in mine]), whole)


def _part_sizes(model: ModelConfig, projection: str) -> list[int]:
    if projection == "attention.qkv":
        keys = model.num_kv_heads * model.head_dim
        return [model.num_heads * model.head_dim, keys, keys]
    return [model.ffn_hidden_size] * len(PARTS[projection])
