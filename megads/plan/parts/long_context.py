"""What the loss in chunks and an MLP in tiles work in. Arithmetic; checked against tensors without data in tests."""

from __future__ import annotations

from megads.config.schema import RunConfig
from megads.families.decoder import padded_vocab_size, spec_of
from megads.plan.parts.activations import core_bytes, input_bytes, layer_bytes, most_heads, rank_tokens
from megads.plan.parts.stacks import head_tokens


def chunk_bytes(run: RunConfig) -> int:
    """Return what the loss in chunks needs.

    A chunk's logits and float32 probabilities; the gradient of the output layer's weight in float32, and in half
    precision a copy of it; the states, what they are the norm of, and their gradient.
    """
    size, tokens = _size(run), head_tokens(run)
    columns = padded_vocab_size(run.model) // run.parallel.tensor
    chunk = min(run.recompute.loss_chunk, tokens)
    weight = columns * run.model.hidden_size * (4 + (size if size < 4 else 0))
    scattered = run.parallel.tensor if run.parallel.scatter_norms else 1
    return chunk * columns * (size + 4) + weight + 3 * tokens * run.model.hidden_size * size // scattered


def working_bytes(run: RunConfig) -> int:
    """Return what a layer's backward pass holds besides what is kept for it, where an MLP goes in tiles.

    Gradients of the MLP's output and input, the next layer's input where that comes from the host, a tile's
    activations with their gradients, and the float32 sums of the MLP's weights' gradients. Between sequence ranks the
    exchange of heads can need more.
    """
    given = run.recompute
    from_host = given.cpu_checkpointing and given.engine == "torch" and run.machine != "cpu"
    if given.mlp_tiles == 1 and not (given.granularity == "full" and (from_host or given.loss_chunk)):
        return 0
    size, tensor, tokens = _size(run), run.parallel.tensor, rank_tokens(run)
    stream = tokens * run.model.hidden_size * size // (tensor if run.parallel.scatter_norms else 1)
    gates = spec_of(run.model).matrices("mlp")[0].shape[0] // run.model.ffn_hidden_size
    inner = run.model.ffn_hidden_size // tensor
    if given.mlp_tiles == 1:  # what is inside the layer is kept and counted with it
        return (2 + from_host) * stream + tokens * size * inner * 4 // 3
    tile = -(-tokens // given.mlp_tiles)
    inside = tile * size * ((2 * gates + 1) * inner + 4 * run.model.hidden_size)
    weights = (gates + 1) * inner * run.model.hidden_size * (4 + (size if size < 4 else 0))
    return max((2 + from_host) * stream + inside + weights, _exchanging(run, stream, from_host=from_host))


def _exchanging(run: RunConfig, stream: int, *, from_host: bool) -> int:
    """Return the same of attention whose heads sequence ranks exchange; what the MLP keeps is gone by then."""
    if run.parallel.sequence == 1:
        return 0
    most, heads = most_heads(run), run.train.micro_batch * run.model.seq_length * run.model.head_dim * _size(run)
    queries, together = most.queries * heads, (most.queries + 2 * most.keys) * heads
    # Kept: the input, its norm, heads, the core. On the way: gradients of residual, result, heads; sent and received.
    whole = 2 * stream + together + core_bytes(run) + (1 + from_host) * stream + queries + 3 * together
    return whole - layer_bytes(run)


def host_checkpoint_bytes(run: RunConfig, layers: int, in_flight: int) -> int:
    """Return the host memory for inputs of recomputed layers; torch rounds page-locked memory to powers of two."""
    given = run.recompute
    if not given.cpu_checkpointing or given.engine != "torch" or run.machine == "cpu":
        return 0
    kept = min(given.num_layers, layers) if given.method == "block" else -(-layers // given.num_layers)
    one = input_bytes(run.model_copy(update={"recompute": given.model_copy(update={"cpu_checkpointing": False})}))
    return in_flight * kept * (1 << max(0, one - 1).bit_length())


def _size(run: RunConfig) -> int:
    return 4 if run.train.dtype == "fp32" else 2
