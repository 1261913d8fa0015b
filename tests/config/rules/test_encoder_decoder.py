"""What t5 and relative positions cannot be combined with is refused with one line, and what it names works."""

from __future__ import annotations

import pytest

from megads.config.rules.advice import put
from megads.config.rules.encoder_decoder import RULES, spans
from megads.config.schema import RunConfig
from tests.models.shapes import GPT, T5S

RELATIVE, PLAIN = (RunConfig(model=T5S[kind]) for kind in ("t5-v1.1", "t5"))


@pytest.mark.parametrize(
    ("run", "changes", "told"),
    [
        (RunConfig(model=GPT), {"model.position_embedding": "relative"}, "POSITION_EMBEDDING=relative is for t5"),
        (PLAIN, {"model.position_embedding": "rope"}, "POSITION_EMBEDDING=rope has no meaning between"),
        (RELATIVE, {"model.attention": "flash"}, "ATTENTION=flash takes no relative positions"),
        (
            RELATIVE,
            {"model.relative_distance": 4},
            "RELATIVE_DISTANCE=4 is within the first half of",
        ),
        (RELATIVE, {"recompute.partition_activations": True}, "PARTITION_ACTIVATIONS=1 keeps one copy"),
        (PLAIN, {"model.norm_position": "after"}, "NORM_POSITION=after is not for t5"),
        (PLAIN, {"data.reset_attention_mask": True}, "RESET_ATTENTION_MASK and RESET_POSITION_IDS are for rows"),
        (PLAIN, {"parallel.sequence": 3}, "DECODER_SEQ=8 cannot be split over SP=3 ranks"),
        (
            PLAIN,
            {"parallel.sequence": 2, "parallel.tensor": 8, "parallel.scatter_norms": True},
            "DECODER_SEQ=8 cannot be split over SP=2 x TP=8 ranks",
        ),
        (
            PLAIN,
            {"data.mask_prob": 0.5},
            "DECODER_SEQ=8 is too short for SEQ=16 and MASK_PROB=0.5: 7 hidden tokens, one",
        ),
        (
            PLAIN,
            {"model.decoder_seq_length": 16, "data.mask_prob": 0.5, "data.vocab_extra_ids": 1},
            "VOCAB_EXTRA_IDS=1 is too few for SEQ=16 and MASK_PROB=0.5: samples have up to",
        ),
    ],
)
def test_what_cannot_work_is_refused_and_every_way_works(run, changes, told):
    broken = put(run, changes)
    (problem,) = [each for rule in RULES for each in rule(broken, 1)]
    assert problem.text.startswith(told)
    assert problem.ways
    for way in problem.ways:
        assert not [each for rule in RULES for each in rule(put(broken, way), 1)], way


def test_more_samples_need_a_longer_decoder():
    """Of 90 tokens for 512, where most samples have 76 + 18 + 1."""
    run = put(PLAIN, {"model.seq_length": 512, "train.global_batch": 1})
    for length, iterations, is_accepted in ((90, 1, False), (96, 1, True), (96, 1000, False), (128, 10**6, True)):
        changed = put(run, {"model.decoder_seq_length": length, "train.train_iters": iterations})
        assert (not [*spans(changed, 1)]) == is_accepted, (length, iterations)
        assert not [*spans(put(changed, {"train.force": True}), 1)]


@pytest.mark.parametrize("run", [RELATIVE, PLAIN, RunConfig(model=GPT)])
def test_what_works_is_accepted(run):
    assert not [each for rule in RULES for each in rule(run, 1)]
