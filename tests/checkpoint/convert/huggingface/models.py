"""Tiny models of every kind, as ours and as transformers', with the same random weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import nn

from megads.checkpoint.convert.huggingface.export import Exported, export
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.format.shard_layout import parameters_of
from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.schema import ModelConfig
from megads.models.gpt import GPT
from tests.checkpoint.sources import write_source
from tests.models import shapes

_LLAMA3 = {
    "rope_scaling": "llama3",
    "rope_scaling_factor": 8.0,
    "rope_low_freq_factor": 1.0,
    "rope_high_freq_factor": 4.0,
    "rope_original_positions": 16,
}
_WIDE = {"head_dim": 16, "rope_theta": 10000.0}


LONG = {"seq_length": 24, "max_positions": 24}


def _llama(**changes: Any) -> ModelConfig:
    return shapes.LLAMA_GQA.model_copy(update={"seq_length": 24, "max_positions": 24, **changes})


def _gpt(**changes: Any) -> ModelConfig:
    return shapes.GPT.model_copy(update={"seq_length": 24, "max_positions": 24, **changes})


OURS = {
    "llama-mha": _llama(num_kv_heads=8),
    "llama-gqa": _llama(),
    "llama-tied": _llama(tied_embeddings=True),
    "llama-3.1": _llama(**_WIDE, **_LLAMA3),
    "llama-linear": _llama(**_WIDE, rope_scaling="linear", rope_scaling_factor=4.0),
    "llama-bias": _llama(bias=True),
    "llama-wide-heads": _llama(head_dim=6),
    "uneven-heads": _llama(num_heads=6, num_kv_heads=2, head_dim=8),  # 32 / 6: LlamaConfig refuses it
    "qwen3": shapes.QWEN3.model_copy(update=LONG),
    "qwen3-tied": shapes.QWEN3.model_copy(update={**LONG, **_LLAMA3, "tied_embeddings": True, "num_kv_heads": 8}),
    "olmo2": shapes.OLMO2.model_copy(update=LONG),
    "gpt2-tanh": _gpt(),
    "gpt2-erf": _gpt(activation="gelu", norm_epsilon=1e-3),
    "gpt2-untied": _gpt(tied_embeddings=False, ffn_hidden_size=40),
}


def weights_of(model: ModelConfig) -> dict[tuple[str, str], NDArray[np.float32]]:
    """Return random weights, those of norms around one; the padding rows are not zeros."""
    draw = np.random.default_rng(0)
    found = {}
    for name, cut in parameters_of(model).items():
        numbers = 0.2 * draw.standard_normal(cut.shape, np.float32)
        found["weight", name] = numbers + 1 if name.endswith("norm.weight") else numbers
    return found


def write_checkpoint(folder: Path, model: ModelConfig, grid: Grid, **more: Any) -> Path:
    """Write a checkpoint of random weights as ranks of ``grid`` would, and return its path."""
    more = {"about": {"tokenizer_type": "NullTokenizer"}, **more}
    return write_source(folder, model, weights_of(model), grid, kinds=("weight",), **more)


def our_module(path: Path, model: ModelConfig) -> GPT:
    """Return our model with the weights of a checkpoint."""
    module = GPT(model.model_copy(update={"hidden_dropout": 0.0, "attention_dropout": 0.0}), Groups(Grid(), 0))
    with Reader(path) as reader:
        state = {name: torch.from_numpy(reader.whole(name)) for name in reader.manifest.tensors}
    module.load_state_dict(state)
    return module.eval()


def assert_same_logits(ours: GPT, theirs: nn.Module, length: int = 24) -> None:
    """Hold our logits against transformers', of the vocabulary without its padding."""
    size = ours.config.vocab_size
    tokens = torch.randint(0, size, (3, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs.eval()(tokens).logits
        found = ours(tokens)[..., :size]
    assert expected.shape == found.shape
    assert expected.abs().max() > 0.5
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


_SIZES: dict[str, Any] = {
    "vocab_size": 53,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
_GPT2: dict[str, Any] = {"vocab_size": 53, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24}
_SCALED = {
    **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    **{"original_max_position_embeddings": 16, "rope_theta": 500000.0},
}
THEIRS: dict[str, transformers.PreTrainedConfig] = {
    "llama2": transformers.LlamaConfig(**{**_SIZES, "num_key_value_heads": 4}),
    "llama3": transformers.LlamaConfig(**_SIZES, rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
    "llama3.2": transformers.LlamaConfig(
        **_SIZES, rope_parameters=_SCALED, tie_word_embeddings=True, head_dim=12, eos_token_id=[3, 4]
    ),
    "llama-linear": transformers.LlamaConfig(
        **_SIZES, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    ),
    "llama-bias": transformers.LlamaConfig(**_SIZES, attention_bias=True, mlp_bias=True),
    "mistral": transformers.MistralConfig(**_SIZES, sliding_window=None, head_dim=16),
    "mistral-window": transformers.MistralConfig(**_SIZES, sliding_window=32),
    "qwen3": transformers.Qwen3Config(**_SIZES, head_dim=12),
    "qwen3-tied": transformers.Qwen3Config(
        **_SIZES, head_dim=16, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e6}
    ),
    "olmo2": transformers.Olmo2Config(**_SIZES, pad_token_id=None, eos_token_id=4),
    "gpt2": transformers.GPT2Config(**_GPT2, initializer_range=0.2),
    "gpt2-erf": transformers.GPT2Config(
        **_GPT2, initializer_range=0.2, activation_function="gelu", n_inner=40, layer_norm_epsilon=1e-3
    ),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def their_module(kind: str, dtype: str = "fp32") -> Any:
    """Return a random model of transformers; no norm is one and no bias zero."""
    torch.manual_seed(0)
    # A copy, in which saving notes the type of the numbers.
    module = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(THEIRS[kind]))
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return module.to(DTYPES[dtype]).eval()


def exported(path: Path, folder: Path, **wanted: Any) -> Exported:
    """Export the checkpoint ``path``; ``wanted`` as of :func:`megads.checkpoint.convert.huggingface.export.export`."""
    with Reader(path) as reader:
        return export(reader, folder, **wanted)


def saved(folder: Path, kind: str, dtype: str = "fp32", **how: Any) -> Path:
    """Save a model of transformers in ``folder/theirs`` and return that."""
    their_module(kind, dtype).save_pretrained(folder / "theirs", **how)
    return folder / "theirs"
