"""Qwen3's config.json."""

from __future__ import annotations

import pytest

from megads.errors import CheckpointError
from megads.families.llama import LLAMA_CLASS
from megads.families.qwen3 import QWEN3_CLASS
from tests.families.read import is_whole, read


def test_a_model_is_read():
    model = read(QWEN3_CLASS)
    assert (model.qk_norm, model.bias, model.head_dim) == ("head", False, 128)  # the class's own width of a head
    assert read(QWEN3_CLASS, head_dim=16).head_dim == 16
    assert is_whole(QWEN3_CLASS, model)
    assert not is_whole(LLAMA_CLASS, model)
    written = QWEN3_CLASS.write(model, {"max_position_embeddings": 32})
    assert (written["head_dim"], written["use_sliding_window"]) == (128, False)


@pytest.mark.parametrize(
    ("key", "words"), [("attention_bias", "biases of the attention"), ("use_sliding_window", "window")]
)
def test_what_we_do_not_compute_is_refused(key, words):
    with pytest.raises(CheckpointError, match=words):
        read(QWEN3_CLASS, **{key: True})
