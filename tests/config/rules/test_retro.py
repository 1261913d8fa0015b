"""What Retro cannot be combined with is refused with one line, and what it names works."""

from __future__ import annotations

import pytest

from megads.config.rules.advice import put
from megads.config.rules.retro import RULES
from megads.config.schema import RunConfig
from tests.models.shapes import GPT, RETRO

RUN = RunConfig(model=RETRO)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model.num_layers": 5}, "NLAYERS=5: the first layer of retro that looks at neighbours is number 6"),
        ({"model.seq_length": 14}, "SEQ=14 is not a whole number of chunks of RETRO_CHUNK_LENGTH=4 tokens"),
        (
            {"parallel.sequence": 2},
            "SEQ=12 is not a whole number of chunks of RETRO_CHUNK_LENGTH=4 tokens, which SP=2 ranks share",
        ),
        (
            {"model.retro_retrieved_chunks": 4},
            "RETRO_CHUNK_LENGTH=4 x RETRO_RETRIEVED_CHUNKS=4 tokens of a neighbour are more than the table of "
            "MAX_POSITIONS=12 learned positions",
        ),
        (
            {"parallel.tensor": 3, "parallel.scatter_norms": True},
            "SCATTER_NORMS=1: 8 tokens of a neighbour cannot be split over TP=3 ranks",
        ),
        ({"parallel.pipeline": 2}, "PP=2: layers of retro share the encoder of one of them"),
        (
            {"recompute.granularity": "full", "parallel.zero_stage": 3, "engine.kind": "deepspeed"},
            "RECOMPUTE=full with ZERO_STAGE=3 or RECOMPUTE_WITH=deepspeed keeps one input of a layer",
        ),
        (
            {"recompute.granularity": "full", "recompute.engine": "deepspeed", "engine.kind": "deepspeed"},
            "RECOMPUTE=full with ZERO_STAGE=3 or RECOMPUTE_WITH=deepspeed keeps one input of a layer",
        ),
        ({"model.norm_position": "after"}, "NORM_POSITION=after is not for retro"),
        ({"data.reset_position_ids": True}, "RESET_ATTENTION_MASK and RESET_POSITION_IDS are not for retro"),
    ],
)
def test_what_cannot_work_is_refused_and_every_way_works(changes, told):
    broken = put(RUN, changes)
    (problem,) = [each for rule in RULES for each in rule(broken, 1)]
    assert problem.text.startswith(told)
    assert problem.ways
    for way in problem.ways:
        assert not [each for rule in RULES for each in rule(put(broken, way), 1)], way


def test_other_families_and_whole_chunks_are_not_refused():
    assert not [each for rule in RULES for each in rule(RUN, 1)]
    assert not [each for rule in RULES for each in rule(put(RUN, {"model.seq_length": 16, "parallel.sequence": 2}), 1)]
    other = put(RunConfig(model=GPT), {"parallel.pipeline": 2, "model.seq_length": 11, "model.num_layers": 2})
    assert not [each for rule in RULES for each in rule(other, 1)]
