"""A model whose layers are read when they run and forgotten after; in memory are one of them, and what is around."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.schema import ModelConfig
from megads.inference.load import Weights, fill
from megads.models.build import model_class
from megads.models.gpt import GPT

ALONE = Groups(Grid(), 0)


def stream_model(weights: Weights) -> GPT:
    """Return a model on the CPU in float32, for a few rows on one rank; of any size, also on a login node.

    Raises:
        CheckpointError: the weights cannot be read; of a layer, when it runs.
    """
    model = weights.model.model_copy(update={"hidden_dropout": 0.0, "attention_dropout": 0.0})
    with torch.device("meta"):
        module = model_class(model)(model, ALONE)
    module = module.eval()
    for name, child in list(module.named_children()):
        if name != "layers":
            _read(weights, model, f"{name}.", child)
    for number, layer in module.layers.items():
        read = partial(_read, weights, model, f"layers.{number}.")
        layer.register_forward_pre_hook(lambda layer, given, read=read: read(layer))
        layer.register_forward_hook(lambda layer, given, found: _forget(layer))
    return module


def _read(weights: Weights, model: ModelConfig, prefix: str, module: nn.Module) -> None:
    marks = [vars(parameter).copy() for parameter in module.parameters()]
    module.to_empty(device="cpu")
    for parameter, mark in zip(module.parameters(), marks, strict=True):
        vars(parameter).update(mark)
    fill(module, weights, ALONE, model, prefix)


def _forget(module: nn.Module) -> Any:
    marks = [vars(parameter).copy() for parameter in module.parameters()]
    module.to(device="meta")
    for parameter, mark in zip(module.parameters(), marks, strict=True):
        vars(parameter).update(mark)
