"""Megatron's files for another layout: the type stays, and what fails leaves nothing."""

from __future__ import annotations

import os

import pytest
import torch

from megads.checkpoint.convert.megatron.reshape import reshape_megatron
from megads.checkpoint.convert.megatron.target import Target
from megads.errors import CheckpointError
from tests.checkpoint.convert.megatron.samples import GPT2, exported, save_ours


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_the_type_and_the_degrees_of_the_source(tmp_path, dtype):
    exported(save_ours(tmp_path / "ours", GPT2), tmp_path / "theirs", tensor=2, pipe=2, dtype=dtype)
    seen = []
    made, notes = reshape_megatron(
        tmp_path / "theirs", tmp_path / "new/out", Target(tensor=4), lambda *found: seen.append(found[1:])
    )
    assert (seen, notes) == ([(2, 2)], ())
    content = torch.load(made / "mp_rank_03" / "model_optim_rng.pt", weights_only=False)
    table = content["model"]["language_model"]["embedding"]["word_embeddings"]["weight"]
    assert table.dtype == content["args"].params_dtype
    assert table.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    assert os.listdir(tmp_path / "new") == ["out"]


def test_what_is_refused_leaves_nothing(tmp_path):
    exported(save_ours(tmp_path / "ours", GPT2), tmp_path / "theirs")
    with pytest.raises(CheckpointError, match="--pp 3 does not divide the 4 layers"):
        reshape_megatron(tmp_path / "theirs", tmp_path / "out", Target(pipe=3), lambda *found: None)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("x")
    with pytest.raises(CheckpointError, match="out: already exists"):
        reshape_megatron(tmp_path / "theirs", tmp_path / "out", Target(), lambda *found: None)
    assert sorted(os.listdir(tmp_path)) == ["ours", "out", "theirs"]
