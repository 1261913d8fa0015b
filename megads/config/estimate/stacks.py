"""What a rank keeps of a forward pass, of models with one stack of layers and of an encoder with a decoder."""

from __future__ import annotations

from megads.config.estimate import activations
from megads.config.estimate.activations import CPU_WEIGHTS, Stage, layer_bytes
from megads.config.schema import RunConfig
from megads.families.encoder_decoder import has_decoder


def head_tokens(run: RunConfig) -> int:
    """Return the tokens of a micro-batch for which one rank computes logits; a decoder alone has them."""
    return activations.rank_tokens(_decoder_alone(run) if has_decoder(run.model) else run)


def saved_bytes(run: RunConfig, stage: Stage) -> int:
    """Return what a stage keeps of all micro-batches that are in flight when most are (1F1B)."""
    if not has_decoder(run.model):
        return activations.saved_bytes(run, stage)
    of_encoder = max(0, min(run.model.num_layers, stage.first + stage.layers) - stage.first)
    parts = [
        (run, Stage(stage.index, of_encoder, stage.has_embedding, stage.has_head, stage.first), 0),
        (_decoder_alone(run), Stage(stage.index, stage.layers - of_encoder, False, stage.has_head), _cross_bytes(run)),
    ]
    in_flight = min(run.train.grad_acc_steps, run.parallel.pipeline - stage.index)
    keeps_cross = run.recompute.granularity != "full"
    return sum(
        activations.saved_bytes(part, some) + in_flight * some.layers * cross * keeps_cross
        for part, some, cross in parts
        if some.layers
    )


def recomputing_bytes(run: RunConfig, stage: Stage) -> int:
    """Return what the largest piece of a stage that is computed again holds while it is."""
    found = activations.recomputing_bytes(run, stage)
    if not has_decoder(run.model) or run.recompute.granularity == "none" or not stage.layers:
        return found
    return max(found, layer_bytes(_decoder_alone(run)) + _cross_bytes(run))


def _decoder_alone(run: RunConfig) -> RunConfig:
    """Return a run on the decoder's tokens."""
    return run.model_copy(update={"model": run.model.model_copy(update={"seq_length": run.model.decoder_seq_length})})


def _cross_bytes(run: RunConfig) -> int:
    """Return what the attention of a decoder layer to the encoder's text keeps, with its norm.

    Of each of the decoder's tokens: input and output of the norm, the dropout mask, the query and the result; of each
    of the encoder's: key and value. The encoder's output is kept once, with the encoder.
    """
    model, grid = run.model, run.parallel
    size, widened = (4, 0) if run.train.dtype == "fp32" else (2, 4)
    own = activations.rank_tokens(_decoder_alone(run))
    seen = activations.rank_tokens(run)
    width = model.hidden_size // (grid.tensor if grid.scatter_norms else 1)
    whole = width * ((2 if model.normalization == "layernorm" else 3) * size + widened)
    whole += width * size if model.hidden_dropout else 0
    heads = model.num_heads * model.head_dim // grid.tensor
    core = 4 + (CPU_WEIGHTS * 4 * model.seq_length if model.attention_dropout and run.machine == "cpu" else 0)
    return own * (whole + 2 * size * heads + core * model.num_heads // grid.tensor) + seen * 2 * size * heads
