"""What an encoder with a decoder cannot be combined with, and relative positions, which it alone has."""

from __future__ import annotations

from collections.abc import Iterator

from megads.config.rules.advice import Change, Problem, multiples
from megads.config.schema import RunConfig
from megads.config.spans import hidden_tokens, needed_decoder_length, needed_spans
from megads.families.encoder_decoder import has_decoder

POSITIONS, NORMS = "model.position_embedding", "model.norm_position"


def positions(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check the kind of positions."""
    model = run.model
    is_relative = model.position_embedding == "relative"
    if is_relative and not has_decoder(model):
        text = f"POSITION_EMBEDDING=relative is for t5, and MODEL_FAMILY={model.family}"
        yield Problem(text, [{POSITIONS: "rope"}, {POSITIONS: "learned"}])
    if has_decoder(model) and model.position_embedding == "rope":
        text = "POSITION_EMBEDDING=rope has no meaning between the encoder and the decoder of t5"
        yield Problem(text, [{POSITIONS: "learned"}, {POSITIONS: "relative"}])
    if is_relative and model.attention == "flash":
        yield Problem("ATTENTION=flash takes no relative positions", [{"model.attention": "sdpa"}])
    exact = model.relative_buckets // 2
    if is_relative and model.relative_distance <= exact:
        text = f"RELATIVE_DISTANCE={model.relative_distance} is within the first half of RELATIVE_BUCKETS={2 * exact}"
        yield Problem(text, [{"model.relative_distance": 4 * exact}])
    if is_relative and run.recompute.partition_activations:
        text = "PARTITION_ACTIVATIONS=1 keeps one copy for all TP ranks, which have relative positions of their own"
        yield Problem(text, [{"recompute.partition_activations": False}])


def parts(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that every rank gets as many tokens of the encoder, and of the decoder, as the others."""
    model, grid = run.model, run.parallel
    if not has_decoder(model):
        return
    if model.norm_position != "before":
        text = f"NORM_POSITION={model.norm_position} is not for t5, whose norms are before attention and MLP"
        yield Problem(text, [{NORMS: "before"}])
    if run.data.reset_attention_mask or run.data.reset_position_ids:
        off: Change = {"data.reset_attention_mask": False, "data.reset_position_ids": False}
        yield Problem("RESET_ATTENTION_MASK and RESET_POSITION_IDS are for rows of documents; t5 has none", [off])
    scattered = grid.tensor if grid.scatter_norms else 1
    degree, length = grid.sequence * scattered, model.decoder_seq_length
    if length % degree:
        how = " x ".join([f"SP={grid.sequence}"] * (grid.sequence > 1) + [f"TP={scattered}"] * (scattered > 1))
        ways: list[Change] = [{"model.decoder_seq_length": each} for each in multiples(length, degree)]
        yield Problem(f"DECODER_SEQ={length} cannot be split over {how} ranks", ways)


def spans(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that no sample is expected in the run whose spans do not fit the decoder, or have no token each."""
    model, data, train = run.model, run.data, run.train
    hidden = hidden_tokens(run)
    fits = 2 * hidden + 1 <= model.decoder_seq_length and not 0 < data.vocab_extra_ids < hidden
    if not has_decoder(model) or train.force or fits:
        return
    samples = max(1, train.train_iters * train.global_batch)
    needed, ends, anyway = needed_decoder_length(run, samples), "would end the run", "set FORCE=1 to start anyway"
    if needed > model.decoder_seq_length:
        text = (
            f"DECODER_SEQ={model.decoder_seq_length} is too short for SEQ={model.seq_length} and "
            f"MASK_PROB={data.mask_prob:g}: {hidden} hidden tokens, one for each span and one more are up to {needed}, "
            f"and a sample that does not fit {ends}"
        )
        scattered = run.parallel.tensor if run.parallel.scatter_norms else 1
        degree = run.parallel.sequence * scattered
        yield Problem(text, [{"model.decoder_seq_length": -(-needed // degree) * degree}], anyway)
    most = needed_spans(run, samples)
    if 0 < data.vocab_extra_ids < most:
        text = (
            f"VOCAB_EXTRA_IDS={data.vocab_extra_ids} is too few for SEQ={model.seq_length} and "
            f"MASK_PROB={data.mask_prob:g}: samples have up to {most} spans, and one with more spans than tokens {ends}"
        )
        yield Problem(text, [{"data.vocab_extra_ids": most}], anyway)


RULES = (positions, parts, spans)
