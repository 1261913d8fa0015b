"""T5's ``config.json`` and names; the weights themselves: tests/checkpoint/convert/huggingface."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.checkpoint.convert.huggingface.names import tensors_of
from megads.errors import CheckpointError
from megads.families.config_json import ConfigJson
from megads.families.decoder import spec_of
from megads.families.t5 import T5_CLASS
from tests.models.shapes import T5S


def _read(**content) -> dict:
    return T5_CLASS.read(ConfigJson(Path("config.json"), content))


def test_a_config_without_sizes_is_t5_small():
    found = _read()
    assert (found["hidden_size"], found["num_layers"], found["decoder_layers"], found["head_dim"]) == (512, 6, 6, 64)
    assert (found["activation"], found["tied_embeddings"], found["relative_buckets"]) == ("relu", True, 32)


def test_version_1_1_is_said_by_either_name():
    for said in ({"tie_word_embeddings": False}, {"tie_word_embeddings": True, "scale_decoder_outputs": False}):
        assert not _read(feed_forward_proj="gated-gelu", **said)["tied_embeddings"]


def test_another_activation_is_refused():
    with pytest.raises(CheckpointError, match="feed_forward_proj='gated-silu' is not supported; gated-gelu, relu are"):
        _read(feed_forward_proj="gated-silu")


@pytest.mark.parametrize("kind", ["t5-v1.1", "t5-v1.0"])
def test_what_is_written_is_read(kind):
    model = T5S[kind]
    written = {**T5_CLASS.write(model, {}), "vocab_size": model.vocab_size}
    read = _read(**written, tie_word_embeddings=model.tied_embeddings)
    same = set(read) - {"init_std", "max_positions", "decoder_seq_length"}
    assert {name: read[name] for name in same} == {name: getattr(model, name) for name in same}


@pytest.mark.parametrize("kind", ["t5-v1.1", "t5-v1.0"])
def test_every_parameter_has_its_names(kind):
    model = T5S[kind]
    found = tensors_of(model, "T5ForConditionalGeneration")
    assert {each.ours for each in found} == {each.name for each in spec_of(model).parameters()}
    assert len({each.name for each in found}) == len(found)
    for each in spec_of(model).parameters():
        rows = sum(part.rows for part in found if part.ours == each.name)
        assert rows == (model.vocab_size if each.kind in ("embedding", "output") else each.shape[0])


def test_a_model_that_is_none_of_theirs_is_refused():
    assert T5_CLASS.misfit(T5S["t5-v1.1"].model_copy(update={"num_kv_heads": 4})).startswith("num_kv_heads=4")
