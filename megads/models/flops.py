"""Floating-point operations of training, for TFLOP/s and utilisation."""

from __future__ import annotations

from megads.config.derive import padded_vocab_size
from megads.config.schema import ModelConfig


def train_flops_per_token(model: ModelConfig, seq_length: int) -> float:
    """Return the model FLOPs of one token's forward and backward pass.

    Counted are the matrix products: a multiply-add is two FLOPs, and the backward pass is
    twice the forward pass. Per layer q, k, v and output projections, both attention
    products over the full square (causality is not subtracted), and the MLP; once the
    logits over the padded vocabulary. Not counted: embedding look-up, norms, softmax,
    activations, rotary turns, the optimizer, and any recomputation.

    Equal to Megatron-LM's (2024)
    ``12 L h^2 [(1 + g/a + s/h) (k a / h) + (f/h) (3/2 if swiglu else 1) + V / (2 L h)]``
    for ``L`` layers of width ``h``, ``a`` heads and ``g`` key/value heads of width ``k``,
    inner width ``f``, sequence length ``s`` and padded vocabulary ``V``.
    """
    width = model.hidden_size
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    projections = width * (2 * queries + 2 * keys)
    attention = 2 * queries * seq_length
    mlp = width * model.ffn_hidden_size * (3 if model.activation == "swiglu" else 2)
    logits = width * padded_vocab_size(model)
    multiply_adds = model.num_layers * (projections + attention + mlp) + logits
    return 6.0 * multiply_adds
