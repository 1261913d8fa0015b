"""Tiny checkpoints, ours and Megatron's, and what models of them say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megads.checkpoint.convert.megatron.export import export_megatron
from megads.checkpoint.convert.megatron.import_ import Imported
from megads.checkpoint.convert.megatron.target import Target
from megads.checkpoint.convert.writer import new_writer
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.format.shard_layout import parameters_of
from megads.checkpoint.resume.compatibility import shape_of
from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.schema import ModelConfig
from megads.models.gpt import GPT
from tests.checkpoint.convert.megatron import megatron
from tests.models import shapes

_MORE_LAYERS = {"num_layers": 4}
LLAMA = shapes.LLAMA_GQA.model_copy(update=_MORE_LAYERS)
GPT2 = shapes.GPT.model_copy(update=_MORE_LAYERS)
MIXED = shapes.MIXED.model_copy(update=_MORE_LAYERS)
KINDS = {"llama": LLAMA, "gpt": GPT2, "mixed": MIXED}


def random_weights(model: ModelConfig, seed: int = 7) -> dict[str, np.ndarray]:
    """Return numbers for every parameter; norms and biases differ from 1 and 0, too."""
    generator = np.random.default_rng(seed)
    found = {}
    for name, cut in parameters_of(model).items():
        numbers = generator.standard_normal(cut.shape, np.float32) * np.float32(0.3)
        found[name] = numbers + np.float32("norm.weight" in name)
    return found


def save_ours(folder: Path, model: ModelConfig, seed: int = 7) -> Path:
    """Write a checkpoint of random weights into ``folder``."""
    with new_writer(folder, parameters_of(model), shape_of(model), {}) as writer:
        for name, numbers in random_weights(model, seed).items():
            writer.add(name, numbers)
    return writer.final


def weights(path: Path) -> dict[str, np.ndarray]:
    """Return every parameter of a checkpoint."""
    with Reader(path) as reader:
        return {name: reader.whole(name) for name in reader.manifest.tensors}


def model_settings(path: Path) -> dict[str, Any]:
    """Return the settings that the checkpoint keeps of its model."""
    with Reader(path) as reader:
        return dict(reader.manifest.model)


def tokens_of(model: ModelConfig) -> Tensor:
    """Return ``[2, 12]`` tokens."""
    return torch.randint(0, model.vocab_size, (2, 12), generator=torch.Generator().manual_seed(3))


def our_logits(path: Path, model: ModelConfig) -> Tensor:
    """Return what our model of a checkpoint says to :func:`tokens_of`, without the columns of padding."""
    gpt = GPT(model, Groups(Grid(), 0)).eval()
    found = {name: torch.from_numpy(numbers.copy()) for name, numbers in weights(path).items()}
    gpt.load_state_dict(found, strict=True)
    with torch.no_grad():
        logits: Tensor = gpt(tokens_of(model))
    return logits[..., : model.vocab_size]


def check_logits(done: Imported, chunks: list[Any], version: float = 3.0, groups: int = megatron.HEADS) -> None:
    """Check that what was imported computes what Megatron's own modules do with ``chunks``."""
    expected = megatron.logits(chunks, tokens_of(done.model), version, groups=groups)
    ours = our_logits(done.path, done.model)
    torch.testing.assert_close(ours, expected[..., : done.model.vocab_size], rtol=1e-5, atol=1e-5)


def exported(ours: Path, folder: Path, **target: Any) -> Path:
    """Export a checkpoint; ``target`` as of :class:`megads.checkpoint.convert.megatron.export.Target`."""
    with Reader(ours) as reader:
        return export_megatron(reader, folder, Target(**target))
