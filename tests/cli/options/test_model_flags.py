"""What Megatron-LM's options say to a command that uses a trained model."""

from __future__ import annotations

import pytest

from megads.cli.options.model_flags import ModelFlags, read_model_flags
from megads.config.schema import ModelConfig
from megads.data.tokenizers.base import TokenizerSpec
from megads.errors import ConfigError

LINE = [
    *[("--num-layers", "24"), ("--hidden-size", "1024"), ("--num-attention-heads", "16"), ("--fp16", "")],
    *[("--max-position-embeddings", "1024"), ("--vocab-file", "vocab.json"), ("--merge-file", "merges.txt")],
    *[("--tokenizer-type", "GPT2BPETokenizer"), ("--checkpoint-activations", ""), ("--log-interval", "10")],
    *[("--no-load-optim", ""), ("--no-load-rng", "")],
]


def test_the_seeds_line():
    found = read_model_flags(LINE)
    assert found.dtype == "fp16"
    assert found.tokenizer == TokenizerSpec("GPT2BPETokenizer", vocab_file="vocab.json", merge_file="merges.txt")
    assert set(found.shape) == {"num_layers", "hidden_size", "num_heads"}
    assert found.note() == (
        "--max-position-embeddings, --checkpoint-activations, --log-interval, --no-load-optim and --no-load-rng have "
        "no effect here"
    )


def test_without_options_nothing_is_said():
    assert read_model_flags([]) == ModelFlags()
    assert ModelFlags().note() == ""
    ModelFlags().check(ModelConfig())
    assert read_model_flags([("--split", "8,1,1"), ("--log-interval", "1")]).split == "8,1,1"


def test_a_model_of_another_shape_is_refused():
    found = read_model_flags([("--num-layers", "24"), ("--hidden-size", "64")])
    found.check(ModelConfig(num_layers=24, hidden_size=64))
    with pytest.raises(ConfigError, match=r"--num-layers 24: the model has 2; drop the option"):
        found.check(ModelConfig(num_layers=2, hidden_size=64))
    with pytest.raises(ConfigError, match="two values, fp16 and bf16"):
        read_model_flags([("--fp16", ""), ("--bf16", "")])
