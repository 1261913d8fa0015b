"""The table of parameters, which needs no torch, against the modules themselves."""

from __future__ import annotations

import pytest

from megads.checkpoint.format.shard_layout import ShardLayout
from megads.checkpoint.format.tensors import parameters_of
from megads.config.schema import ModelConfig
from tests.models import shapes
from tests.models.shapes import GPT, LLAMA, make_run

KINDS = {
    **shapes.KINDS,
    **shapes.SEQUENCE_KINDS,
    **shapes.FAMILIES,
    "llama-tied": LLAMA.model_copy(update={"tied_embeddings": True}),
    "llama-biases": LLAMA.model_copy(update={"bias": True}),
    "llama-learned": LLAMA.model_copy(update={"position_embedding": "learned"}),
    "llama-layernorm": LLAMA.model_copy(update={"normalization": "layernorm"}),
    "gpt-untied": GPT.model_copy(update={"tied_embeddings": False}),
    "gpt-no-bias": GPT.model_copy(update={"bias": False}),
    "gpt-rmsnorm": GPT.model_copy(update={"normalization": "rmsnorm"}),
    "padded": LLAMA.model_copy(update={"vocab_size": 57, "vocab_multiple": 64}),
    "five-layers": LLAMA.model_copy(update={"num_layers": 5}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_is_the_modules(kind):
    found = _parameters_of_module(KINDS[kind])
    assert parameters_of(KINDS[kind]) == found
    assert list(parameters_of(KINDS[kind])) == list(found)


def _parameters_of_module(model: ModelConfig) -> dict[str, ShardLayout]:
    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.models.build import build_model

    found = {}
    for name, parameter in build_model(make_run(model), Groups(Grid(), 0)).named_parameters():
        shard = getattr(parameter, "shard", None)
        cut = (shard.dim, shard.parts) if shard is not None else (None, ())
        found[name] = ShardLayout(tuple(parameter.shape), *cut)
    return found
