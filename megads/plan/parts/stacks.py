"""What a rank keeps of a forward pass, of models with one stack of layers and of an encoder with a decoder."""

from __future__ import annotations

from collections.abc import Iterable

from megads.config.schema import RunConfig
from megads.config.stages import virtual_stages
from megads.families.encoder_decoder import has_decoder
from megads.families.table import FAMILIES
from megads.plan.conventions import MEGADS, Conventions
from megads.plan.parts import activations, retro
from megads.plan.parts.activations import Stage, layer_bytes, norm_bytes


def head_tokens(run: RunConfig) -> int:
    """Return the tokens of a micro-batch for which one rank computes logits; a decoder alone has them."""
    return activations.rank_tokens(_decoder_alone(run) if has_decoder(run.model) else run)


def saved_bytes(run: RunConfig, stage: Stage, by: Conventions = MEGADS) -> int:
    """Return what a stage keeps of all micro-batches that are in flight when most are."""
    if not _has_parts(run):
        return activations.saved_bytes(run, stage, by)
    given = run.recompute
    # The input of a layer that is computed again is one tensor with the tokens of both texts of T5.
    both = run.model.seq_length + run.model.decoder_seq_length if by.keeps_both_texts else run.model.seq_length
    kept = activations.input_bytes(run) * both // run.model.seq_length
    between = 0 if has_decoder(run.model) or given.granularity != "full" else retro.kept_between(run)

    def of_chunk(numbers: range) -> int:
        layers = _layers(run, numbers, by)
        if given.granularity == "none":
            return sum(layer for layer, _ in layers)
        if given.granularity == "selective":
            return sum(layer - core for layer, core in layers)
        if given.method == "block":
            again = min(given.num_layers, len(layers))
            return again * kept + sum(layer for layer, _ in layers[again:]) + between
        return -(-len(layers) // given.num_layers) * kept + between

    def waiting(numbers: range) -> int:
        return sum(layer for layer, _ in _layers(run, numbers, by))

    return activations.most_kept(run, stage, of_chunk, waiting)


def buffer_bytes(run: RunConfig, stage: Stage, by: Conventions) -> int:
    """Return what is not freed between steps: tensors between stages, and a buffer of the scores of one layer."""
    # Interleaved stages get what the next chunk needs while they compute another one.
    ahead = 2 if virtual_stages(run) > 1 else 1
    passed = ahead * by.passed * activations.input_bytes(run) if by.passed and run.parallel.pipeline > 1 else 0
    if not (by.kept_score_bytes and stage.layers):
        return passed
    model, rows = run.model, run.train.micro_batch * activations.most_heads(run).queries
    return passed + by.kept_score_bytes * rows * model.seq_length**2


def _has_parts(run: RunConfig) -> bool:
    """Return whether layers differ in what they keep."""
    return has_decoder(run.model) or FAMILIES[run.model.family].samples == "retro"


def recomputing_bytes(run: RunConfig, stage: Stage, by: Conventions = MEGADS) -> int:
    """Return what the largest piece of a stage that is computed again holds while it is."""
    given = run.recompute
    if not _has_parts(run) or given.granularity == "none" or not stage.layers:
        return activations.recomputing_bytes(run, stage, by)
    layers = _layers(run, stage.numbers, by)
    if given.granularity == "selective":
        return max(core for _, core in layers)
    largest = max(map(len, stage.runs))
    return max(layer for layer, _ in layers) * (1 if given.method == "block" else min(given.num_layers, largest))


def _layers(run: RunConfig, numbers: Iterable[int], by: Conventions) -> list[tuple[int, int]]:
    """Return the bytes that the layers with ``numbers`` keep, and how many of them are their attention cores'.

    Of T5: the input of a layer is a part of one tensor with both texts, all of which is kept.
    """
    model, grid = run.model, run.parallel
    if not has_decoder(model):
        return retro.layers(run, numbers)
    scattered = grid.tensor if grid.scatter_norms else 1
    alone = [_alone(run, length) for length in (model.seq_length, model.decoder_seq_length)]
    found = []
    for part, other in zip(alone, reversed(alone), strict=True):
        beside = activations.rank_tokens(other) * model.hidden_size * _size(run) // scattered
        beside = beside if by.keeps_both_texts else 0
        bias = _bias_bytes(part)
        found.append((layer_bytes(part, by) + beside + bias, activations.core_bytes(part, by) + bias))
    seen, core = _cross_bytes(run, by)
    found[1] = found[1][0] + seen + core, found[1][1] + core
    return [found[number >= model.num_layers] for number in numbers]


def _alone(run: RunConfig, length: int) -> RunConfig:
    """Return a run on one of the two texts, without attention to the other."""
    return run.model_copy(update={"model": run.model.model_copy(update={"decoder_layers": 0, "seq_length": length})})


def _size(run: RunConfig) -> int:
    return 4 if run.train.dtype == "fp32" else 2


def _bias_bytes(run: RunConfig) -> int:
    """Return what the relative positions of one text keep in a core at most: the bias, on a CPU torch's weights too."""
    model = run.model
    if model.position_embedding != "relative":
        return 0
    square = activations.most_heads(run).queries * model.seq_length**2 * _size(run)
    return square * (1 + (run.train.micro_batch if run.machine == "cpu" and not model.attention_dropout else 0))


def _decoder_alone(run: RunConfig) -> RunConfig:
    """Return a run on the decoder's tokens."""
    return run.model_copy(update={"model": run.model.model_copy(update={"seq_length": run.model.decoder_seq_length})})


def _cross_bytes(run: RunConfig, by: Conventions) -> tuple[int, int]:
    """Return what the attention of a decoder layer to the encoder's text keeps, with its norm: outside and in its core.

    Of each of the decoder's tokens: input and output of the norm, the dropout mask, the query and the result; of each
    of the encoder's: key and value.
    """
    model, grid, size = run.model, run.parallel, _size(run)
    own, seen = activations.rank_tokens(_decoder_alone(run)), activations.rank_tokens(run)
    whole = model.hidden_size * norm_bytes(run, has_bias=model.normalization == "layernorm")
    whole += model.hidden_size * (by.mask_bytes or size) if model.hidden_dropout else 0
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    outside = own * whole // (grid.tensor if grid.scatter_norms else 1)
    outside += 2 * size * (own * queries + seen * keys) // grid.tensor
    heads = activations.most_heads(run).queries * run.train.micro_batch * model.decoder_seq_length
    return outside, heads * activations.weights_bytes(run, by)
