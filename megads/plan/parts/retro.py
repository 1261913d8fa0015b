"""Retro: multiply-adds of a sample's forward pass, and what a rank keeps of looks at neighbours and their encoder."""

from __future__ import annotations

from collections.abc import Iterable

from megads.config.schema import ModelConfig, RunConfig
from megads.families.decoder import spec_of
from megads.families.retro import first_layer, looks
from megads.families.spec import Parameter
from megads.plan.parts import activations
from megads.plan.parts.activations import CPU_WEIGHTS, layer_bytes, norm_bytes, rank_tokens
from megads.plan.parts.encoder_decoder import LayerProducts


def of_chunk(model: ModelConfig) -> int:
    """Return the tokens of the neighbours of one chunk."""
    return model.retro_num_neighbors * model.retro_retrieved_chunks * model.retro_chunk_length


def layer_products(model: ModelConfig, *, causal: bool = False) -> list[LayerProducts]:
    """Return the multiply-adds of every layer for a whole sample; the first that looks has the encoder's, too."""
    return [_products(model, layer, causal=causal) for layer in spec_of(model).layers()]


def _products(model: ModelConfig, layer: tuple[Parameter, ...], *, causal: bool) -> LayerProducts:
    own, queries, has_look = model.seq_length, model.num_heads * model.head_dim, model.retro_attention_gate > 0
    texts = own // model.retro_chunk_length * of_chunk(model)
    retrieved = model.retro_chunk_length * model.retro_retrieved_chunks
    core, rest = queries * own * own * (1 if causal else 2), 0
    for each in layer:
        if each.kind != "matrix":
            continue
        is_text, is_look = each.name.startswith("retriever."), "cross_attention." in each.name
        if (is_text or is_look) and not has_look:
            continue
        # Keys of a look are of the other tokens.
        is_of_texts = is_text != ("cross_attention.kv" in each.name)
        rest += each.size * (texts if is_of_texts else own)
        if each.name.endswith("attention.qkv.weight") and is_text:
            core += 2 * queries * texts * retrieved
        elif each.name.endswith("cross_attention.q.weight"):
            core += 2 * queries * (texts * model.retro_chunk_length if is_text else own * of_chunk(model))
    return LayerProducts(core, rest)


def layers(run: RunConfig, numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the bytes that the layers with ``numbers`` keep, and how many of them are their attention cores'."""
    model, found = run.model, []
    plain = layer_bytes(run), activations.core_bytes(run)
    for number in numbers:
        kept, core = plain
        if looks(number, model.num_layers) and model.retro_attention_gate:
            parts = [_look(run)]
            if number == first_layer(model.num_layers):
                parts += [*_encoder(run), (_width(run) * text_tokens(run), 0)]
            kept += sum(part for part, _ in parts)
            core += sum(part for _, part in parts)
        found.append((kept, core))
    return found


def kept_between(run: RunConfig) -> int:
    """Return what is kept of the neighbours where layers are computed again: what they are embedded and encoded to."""
    return 2 * _width(run) * text_tokens(run) if run.model.retro_attention_gate else 0


def text_tokens(run: RunConfig) -> int:
    """Return the tokens of all neighbours that a rank encodes for a micro-batch."""
    return rank_tokens(run) // run.model.retro_chunk_length * of_chunk(run.model)


def _width(run: RunConfig) -> int:
    """Return the bytes of a token between two layers."""
    scattered = run.parallel.tensor if run.parallel.scatter_norms else 1
    return run.model.hidden_size * (4 if run.train.dtype == "fp32" else 2) // scattered


def _encoder(run: RunConfig) -> list[tuple[int, int]]:
    """Return what every layer of the encoder keeps, and the look of the first at the chunks."""
    model, grid, train = run.model, run.parallel, run.train
    rows = text_tokens(run) // (model.retro_chunk_length * model.retro_retrieved_chunks)
    rates = model.retro_encoder_hidden_dropout, model.retro_encoder_attention_dropout
    changes = {
        "family": "gpt",
        "seq_length": model.retro_chunk_length * model.retro_retrieved_chunks,
        **dict(zip(("hidden_dropout", "attention_dropout"), rates, strict=True)),
    }
    alone = run.model_copy(
        update={
            "model": model.model_copy(update=changes),
            "parallel": grid.model_copy(update={"sequence": 1}),
            "train": train.model_copy(update={"micro_batch": rows}),
        }
    )
    layer = layer_bytes(alone), activations.core_bytes(alone)
    texts, chunk = text_tokens(run), model.retro_chunk_length
    seen = _seen(run, texts, rank_tokens(run), chunk, 2, model.retro_encoder_hidden_dropout)
    return [*[layer] * model.retro_encoder_layers, seen]


def _look(run: RunConfig) -> tuple[int, int]:
    """Return what the look of a layer of the decoder keeps; queries and results are moved by a chunk, in copies."""
    model = run.model
    chunks = rank_tokens(run) // model.retro_chunk_length
    ahead = run.train.micro_batch * of_chunk(model) if run.parallel.sequence > 1 else 0
    own = rank_tokens(run) * (chunks + 1) // chunks if ahead else rank_tokens(run)
    return _seen(run, own, text_tokens(run) + ahead, of_chunk(model), 3, model.hidden_dropout)


def _seen(run: RunConfig, own: int, seen: int, keys: int, copies: int, dropout: float) -> tuple[int, int]:
    """Return what attention of ``own`` tokens to others keeps, with its norm: in all, and in its core.

    Args:
        seen: tokens that keys are made of.
        keys: that a token looks at.
        copies: of queries and results that are kept.
    """
    model, size, tensor = run.model, 4 if run.train.dtype == "fp32" else 2, run.parallel.tensor
    whole = model.hidden_size * norm_bytes(run, has_bias=model.normalization == "layernorm")
    whole += model.hidden_size * size if dropout else 0
    queries, values = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    outside = own * whole // (tensor if run.parallel.scatter_norms else 1)
    outside += size * (copies * own * queries + 2 * seen * values) // tensor
    on_cpu = model.attention_dropout and run.machine == "cpu"
    core = own * model.num_heads // tensor * (4 + (CPU_WEIGHTS * 4 * keys if on_cpu else 0))
    return outside + core, core
