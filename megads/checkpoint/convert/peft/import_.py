"""From a folder of peft to a checkpoint of adapters, which a run then trains further. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megads.checkpoint.convert.huggingface.config import architecture_of
from megads.checkpoint.convert.huggingface.read_tensors import Tensors, open_tensors, read_json
from megads.checkpoint.convert.peft.names import CONFIG, PREFIX, WEIGHTS, Module, modules_of
from megads.checkpoint.convert.writer import new_writer
from megads.checkpoint.format.folders import CheckpointRef, checkpoint_name
from megads.checkpoint.format.shard_layout import parameters_of, saved_parameters
from megads.checkpoint.function.record import KEY as FUNCTION
from megads.checkpoint.lora.base import NOTE, is_adapters, note_of
from megads.checkpoint.resume.compatibility import HF, model_of, shape_of
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError
from megads.families.config_json import ConfigJson
from megads.families.family import HuggingFace
from megads.families.lora import PARTS, A, B, adapter_of
from megads.families.table import ALL_CLASSES

_UNKNOWN: Mapping[str, str] = {
    "use_dora": "DoRA",
    "modules_to_save": "modules that are trained whole",
    "layers_to_transform": "adapters of some layers",
    "trainable_token_indices": "tokens that are trained",
    "target_parameters": "adapters of parameters",
    "lora_bias": "biases of adapters",
    "rank_pattern": "ranks that differ",
    "alpha_pattern": "scales that differ",
    "layer_replication": "layers that are repeated",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal adapters",
}
"""Settings of peft that we do not compute -> what they ask for."""


def import_adapters(folder: Path, final: Path, base: CheckpointRef) -> tuple[Path, ModelConfig]:
    """Make a checkpoint of adapters, of ``base``, in the new folder ``final``; return its path and the model.

    Raises:
        CheckpointError: the folder is incomplete, is not of this base, or asks for what we do not compute.
    """
    if is_adapters(base.manifest):
        raise CheckpointError(f"{base.path}: holds adapters itself; pass the checkpoint that it names as its base")
    config = ConfigJson(folder / CONFIG, read_json(folder / CONFIG))
    plain = model_of(base.path, base.manifest)
    wanted = str(base.manifest.about.get(HF, {}).get("architecture", ""))
    row = ALL_CLASSES[architecture_of(plain, wanted)]
    source = open_tensors(folder / WEIGHTS)
    chosen = _chosen(source, row, plain)
    model = plain.model_copy(update=_settings(config, chosen))
    # Not the losses of the base: adapters change them.
    kept = {name: value for name, value in base.manifest.about.items() if name != FUNCTION}
    about = {**kept, NOTE: note_of(base), "source": str(folder), "source_format": "peft"}
    with new_writer(final, saved_parameters(model), shape_of(model), about) as writer:
        for layer in range(model.num_layers):
            for projection in dict.fromkeys(each.projection for each in chosen):
                mine = [each for each in chosen if each.projection == projection]
                a, b = _fused(source, model, row, mine, layer)
                writer.add(f"layers.{layer}.{projection}.{A}", a)
                writer.add(f"layers.{layer}.{projection}.{B}", b)
    return final / checkpoint_name(0), model


def _settings(config: ConfigJson, chosen: list[Module]) -> dict[str, Any]:
    """Return our settings of what the configuration says."""
    if config.get("peft_type", "") != "LORA":
        raise config.error(f"peft_type is {config.get('peft_type', '')!r:.40}, only LORA can be read")
    for name, what in _UNKNOWN.items():
        config.refuse(name, f"asks for {what}, which megads does not have")
    config.expect("bias", ("none",), "none")
    rank, alpha = config.size("r", 8), config.number("lora_alpha", 8.0)
    if alpha <= 0:
        raise config.error(f"lora_alpha is {alpha:g}, expected a number above 0")
    words = [PARTS[each.projection][part] for each in chosen for part in each.parts]
    return {
        "lora_rank": rank,
        "lora_alpha": alpha * (math.sqrt(rank) if config.flag("use_rslora", False) else 1.0),
        "lora_dropout": config.number("lora_dropout", 0.0),
        "lora_targets": " ".join(words),
    }


def _chosen(source: Tensors, row: HuggingFace, model: ModelConfig) -> list[Module]:
    """Return the modules that have adapters, the same in every layer.

    Raises:
        CheckpointError: some layers lack one, or there is a tensor that is none of these.
    """
    known = {
        each.tensor(row, layer, which): each
        for each in modules_of(row)
        for layer in range(model.num_layers)
        for which in ("lora_A", "lora_B")
    }
    if strange := [name for name in source.shapes if name not in known]:
        hint = "" if strange[0].startswith(PREFIX) else f", whose names begin with {PREFIX}"
        raise CheckpointError(
            f"{source.path}: {strange[0]:.120} is no adapter of a linear layer of {row.name} with {model.num_layers} "
            f"layers{hint}"
        )
    chosen = [each for each in modules_of(row) if each.tensor(row, 0, "lora_A") in source.shapes]
    if not chosen:
        raise CheckpointError(f"{source.path}: holds no adapters")
    wanted = [name for name, each in known.items() if each in chosen]
    if missing := [name for name in wanted if name not in source.shapes]:
        raise CheckpointError(
            f"{source.path}: has no {missing[0]}; every layer must have the adapters of the first one"
        )
    if unwanted := [name for name in source.shapes if known[name] not in chosen]:
        raise CheckpointError(f"{source.path}: has {unwanted[0]}, and the first layer has no such adapter")
    return chosen


def _fused(
    source: Tensors, model: ModelConfig, row: HuggingFace, modules: list[Module], layer: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return A and B of a projection, of the modules that it fuses."""
    (projection,) = {each.projection for each in modules}
    adapter, weight = adapter_of(model, projection), parameters_of(model)[f"layers.{layer}.{projection}.weight"]
    assert adapter is not None
    rank, found = model.lora_rank, []
    for each in modules:
        parts = weight.parts if weight.dim == 0 else (weight.shape[0],)
        shapes = {"lora_A": (rank, weight.shape[1]), "lora_B": (sum(parts[i] for i in each.parts), rank)}
        factors = []
        for which, shape in shapes.items():
            name = each.tensor(row, layer, which)
            if tuple(source.shapes[name]) != shape:
                raise CheckpointError(
                    f"{source.path}: {name} has shape {list(source.shapes[name])}, rank {rank} of this base has "
                    f"{list(shape)}; the adapters are of another model"
                )
            out = np.empty(shape, np.float32)
            source.fill(out, name, 0, 0)
            factors.append(out)
        found.append(factors)
    a = np.concatenate([factors[0] for factors in found])
    # One module of all parts, of which each has an A here: they begin as the same.
    times = sum(adapter.ranks) // len(a)
    return np.tile(a, (times, 1)), np.concatenate([factors[1] for factors in found])
