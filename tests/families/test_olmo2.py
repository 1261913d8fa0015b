"""OLMo 2's config.json."""

from __future__ import annotations

import pytest

from megads.errors import CheckpointError
from megads.families.llama import LLAMA_CLASS
from megads.families.olmo2 import OLMO2_CLASS
from tests.families.read import is_whole, read


def test_a_model_is_read():
    model = read(OLMO2_CLASS)
    assert (model.norm_position, model.qk_norm, model.bias, model.norm_epsilon) == ("after", "all", False, 1e-5)
    assert is_whole(OLMO2_CLASS, model)
    assert not is_whole(LLAMA_CLASS, model)
    assert OLMO2_CLASS.write(model, {"max_position_embeddings": 32})["attention_bias"] is False


def test_what_the_class_does_not_have():
    with pytest.raises(CheckpointError, match="biases of the attention alone"):
        read(OLMO2_CLASS, attention_bias=True)
    assert "head_dim=32" in OLMO2_CLASS.misfit(read(OLMO2_CLASS).model_copy(update={"head_dim": 32}))
