"""The model that a checkpoint of Megatron is of."""

from __future__ import annotations

import enum
import sys
import types

import pytest

from megads.checkpoint.convert.megatron.import_ import import_megatron
from megads.errors import CheckpointError
from tests.checkpoint.convert.megatron import megatron
from tests.checkpoint.convert.megatron.megatron import ROWS, arguments, model_tensors, save
from tests.checkpoint.convert.megatron.samples import check_logits


def test_without_any_arguments(tmp_path):
    chunks = model_tensors(2, 2)
    save(tmp_path / "src", chunks, args=None, checkpoint_version=3.0)
    with pytest.raises(CheckpointError, match="--num-heads"):
        import_megatron(tmp_path / "src", tmp_path / "dst")
    assert not (tmp_path / "dst").exists()
    done = import_megatron(tmp_path / "src", tmp_path / "dst", dict(num_heads=4, **megatron.UNSAID))
    assert done.model.vocab_size == ROWS
    assert any("--vocab-size" in note for note in done.notes)
    assert any("holds no arguments" in note for note in done.notes)
    check_logits(done, chunks)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_experts": 8}, "num_experts"),
        ({"position_embedding_type": "alibi"}, "alibi positions"),
        ({"rotary_percent": 0.25}, "rotary_percent"),
        ({"apply_layernorm_1p": True}, "apply_layernorm_1p"),
        ({"num_layers": 24}, "num_layers=24"),
        ({"position_embedding_type": "mrope"}, "has mrope positions; megads has rotary and learned ones"),
        ({"no_rope_freq": 4}, "no_rope_freq, layers without rotary positions"),
        ({"qk_layernorm": True}, "say qk_layernorm=True, its files hold no norms of queries and keys"),
        ({"window_size": (128, 0)}, "window_size, sliding-window attention"),
        ({"layernorm_epsilon": 0.0}, "its norm_epsilon is 0.0: input should be greater than 0"),
        ({"vocab_size": 5000}, "--vocab-size"),
        ({"num_attention_heads": 5, "kv_channels": None}, "--num-heads"),
    ],
)
def test_models_that_megads_has_not(tmp_path, changed, said):
    save(tmp_path / "src", model_tensors(2, 1), args=arguments(**changed), checkpoint_version=3.0)
    with pytest.raises(CheckpointError, match=said):
        import_megatron(tmp_path / "src", tmp_path / "dst")
    assert not (tmp_path / "dst").exists()


def test_an_enum_of_a_program_that_is_not_there(tmp_path, monkeypatch):
    """BigScience keeps the kind of positions as one of its enums."""
    module = types.ModuleType("megatron.enums")
    module.PositionEmbeddingType = enum.Enum(
        "PositionEmbeddingType", {"rotary": 1, "absolute": 2, "alibi": 3}, module="megatron.enums"
    )
    monkeypatch.setitem(sys.modules, "megatron.enums", module)
    chunks = model_tensors(2, 1)
    for kind in ("absolute", "alibi"):
        args = arguments(position_embedding_type=module.PositionEmbeddingType[kind])
        save(tmp_path / kind, chunks, args=args, checkpoint_version=3.0)
    monkeypatch.delitem(sys.modules, "megatron.enums")
    check_logits(import_megatron(tmp_path / "absolute", tmp_path / "dst"), chunks)
    with pytest.raises(CheckpointError, match="alibi positions"):
        import_megatron(tmp_path / "alibi", tmp_path / "other")
