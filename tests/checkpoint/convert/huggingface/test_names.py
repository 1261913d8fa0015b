"""Which of their tensors is which part of ours."""

from __future__ import annotations

import json

from safetensors.torch import load_file

from megads.comm.grid import Grid
from tests.checkpoint.convert.huggingface.models import (
    OURS,
    exported,
    weights_of,
    write_checkpoint,
)


def test_padding_rows_are_left_out(tmp_path):
    model = OURS["llama-gqa"]
    assert weights_of(model)["weight", "embedding.weight"].shape[0] == 56
    exported(write_checkpoint(tmp_path / "ours", model, Grid()), tmp_path / "theirs", dtype="fp32")
    tensors = load_file(tmp_path / "theirs" / "model.safetensors")
    assert tensors["model.embed_tokens.weight"].shape == tensors["lm_head.weight"].shape == (53, 32)
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["vocab_size"] == 53


def test_tied_output_layers_are_not_written_twice(tmp_path):
    exported(write_checkpoint(tmp_path / "ours", OURS["llama-tied"], Grid()), tmp_path / "theirs", dtype="fp32")
    assert "lm_head.weight" not in load_file(tmp_path / "theirs" / "model.safetensors")
