"""What is asked of an export to Megatron's files."""

from __future__ import annotations

import pytest

from megads.checkpoint.convert.megatron.target import Target, check_target, split_rank_of, stage_layers
from megads.config.stages import split_ranks
from megads.errors import CheckpointError
from tests.models import shapes

OURS = shapes.T5.model_copy(update={"num_layers": 4, "decoder_layers": 2})


@pytest.mark.parametrize(
    ("layers", "stages", "fitting", "best"),
    [((4, 2), 2, [1], 1), ((4, 2), 3, [1, 2], 2), ((12, 12), 4, [1, 2, 3], 2), ((4, 2), 8, [], 0), ((4, 2), 1, [], 0)],
)
def test_where_the_decoder_may_begin(layers, stages, fitting, best):
    model = OURS.model_copy(update={"num_layers": layers[0], "decoder_layers": layers[1]})
    assert split_ranks(model, stages) == fitting
    assert split_rank_of(model, Target(pipe=stages)) == best


def test_layers_of_stages():
    assert stage_layers(OURS, Target(pipe=3)) == [range(2), range(2, 4), range(4, 6)]
    assert stage_layers(OURS, Target(pipe=3, split_rank=1)) == [range(4), range(4, 5), range(5, 6)]
    assert stage_layers(OURS, Target()) == [range(6)]
    assert stage_layers(shapes.BERT, Target(pipe=2)) == [range(1), range(1, 2)]


@pytest.mark.parametrize(
    ("model", "target", "told"),
    [
        (shapes.T5_V11, {}, "learned positions, and this one has relative ones; use `megads checkpoint export-hf`"),
        (OURS, {"pipe": 3, "split_rank": 3}, "--split-rank 3 is not between 1 and --pp 3 less 1"),
        (OURS, {"pipe": 4, "split_rank": 1}, "--pp 4 stages cannot share .* use --split-rank 2"),
        (OURS, {"pipe": 8}, "--pp 8 stages cannot share .* use another --pp"),
        (OURS, {"style": "core", "pipe": 2}, "Megatron-core's T5 has no pipeline stages"),
        (OURS.model_copy(update={"bias": False}), {}, "has a bias of the logits, and ADD_BIAS=0 has none"),
        (OURS.model_copy(update={"tied_embeddings": False}), {}, "legacy T5 has tied embeddings only"),
        (OURS.model_copy(update={"num_kv_heads": 4}), {}, "has num_kv_heads as num_heads"),
        (shapes.BERT, {"split_rank": 1, "pipe": 2}, "--split-rank is for T5"),
        (shapes.RETRO, {}, "a Retro model is not written in Megatron's format"),
    ],
)
def test_what_megatron_does_not_have_is_refused(model, target, told):
    with pytest.raises(CheckpointError, match=told):
        check_target(model, Target(**target))
