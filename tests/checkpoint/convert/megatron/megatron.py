"""Megatron's legacy GPT from its files, rank by rank, as its own modules compute it; written apart from the importer.

Every tensor-parallel rank multiplies its own rows of the fused projection, reads them in the order of its
``checkpoint_version``, attends with its own heads, multiplies its own columns of ``dense``, and
the results are summed; likewise the MLP. Pipeline stages follow one another.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

HIDDEN, HEADS, WIDTH, INNER, ROWS, POSITIONS = 16, 4, 6, 24, 24, 12
EPSILON, BASE = 1e-3, 500.0
"""Not Megatron's defaults, as little as heads whose channels are not the hidden size together."""
UNSAID = {"head_dim": WIDTH, "norm_epsilon": EPSILON}
"""What must be stated of files that do not say it."""


Rank = dict[str, Any]


def arguments(**changed: Any) -> argparse.Namespace:
    """Return what a run of this size would have saved."""
    values: dict[str, Any] = {
        "num_layers": 2,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "kv_channels": WIDTH,
        "ffn_hidden_size": INNER,
        "max_position_embeddings": POSITIONS,
        "seq_length": POSITIONS,
        "layernorm_epsilon": EPSILON,
        "rotary_base": BASE,
        "make_vocab_size_divisible_by": 4,
        "padded_vocab_size": ROWS,
        "vocab_size": 21,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "bias_gelu_fusion": True,
        "params_dtype": torch.float32,
        "consumed_train_samples": 640,
    }
    return argparse.Namespace(**{**values, **changed})


def layer_tensors(generator: torch.Generator, degree: int, groups: int, llama: bool) -> list[dict[str, Tensor]]:
    """Return every rank's tensors of a layer by today's legacy names."""

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 0.4

    qkv, inner = (HEADS + 2 * groups) * WIDTH // degree, INNER // degree
    shared = {"input_layernorm.weight": numbers(HIDDEN) + 1, "post_attention_layernorm.weight": numbers(HIDDEN) + 1}
    if not llama:
        shared |= {"input_layernorm.bias": numbers(HIDDEN), "post_attention_layernorm.bias": numbers(HIDDEN)}
        shared |= {"self_attention.dense.bias": numbers(HIDDEN), "mlp.dense_4h_to_h.bias": numbers(HIDDEN)}
    ranks = []
    for _ in range(degree):
        own = {
            "self_attention.query_key_value.weight": numbers(qkv, HIDDEN),
            "self_attention.dense.weight": numbers(HIDDEN, HEADS * WIDTH // degree),
            "mlp.dense_h_to_4h.weight": numbers(inner * (2 if llama else 1), HIDDEN),
            "mlp.dense_4h_to_h.weight": numbers(HIDDEN, inner),
        }
        if not llama:
            own |= {"self_attention.query_key_value.bias": numbers(qkv), "mlp.dense_h_to_4h.bias": numbers(inner)}
        ranks.append({**shared, **own})
    return ranks


def model_tensors(
    layers: int, degree: int, *, groups: int = HEADS, llama: bool = False, seed: int = 1
) -> list[list[Rank]]:
    """Return ``[embedding, layer, ..., head]``, of each every rank's tensors: of the embedding words and positions."""
    generator = torch.Generator().manual_seed(seed)
    words = [torch.randn(ROWS // degree, HIDDEN, generator=generator) for _ in range(degree)]
    positions = {} if llama else {"positions": torch.randn(POSITIONS, HIDDEN, generator=generator)}
    chunks: list[list[Rank]] = [[{"words": each, **positions} for each in words]]
    chunks += [layer_tensors(generator, degree, groups, llama) for _ in range(layers)]
    norm = {"weight": torch.randn(HIDDEN, generator=generator) + 1}
    norm |= {} if llama else {"bias": torch.randn(HIDDEN, generator=generator)}
    head = (
        [{"output": torch.randn(ROWS // degree, HIDDEN, generator=generator)} for _ in range(degree)] if llama else []
    )
    return [*chunks, [{**norm, **(head[rank] if head else {})} for rank in range(degree)]]


def logits(chunks: list[list[Rank]], tokens: Tensor, version: float, *, groups: int = HEADS) -> Tensor:
    """Return ``[B, S, ROWS]`` as Megatron computes them."""
    embedding, *layers, last = chunks
    x = F.embedding(tokens, torch.cat([rank["words"] for rank in embedding]))
    llama = "positions" not in embedding[0]
    if not llama:
        x = x + embedding[0]["positions"][: tokens.shape[1]]
    for ranks in layers:
        x = x + _attention(_norm(x, ranks[0], "input_layernorm."), ranks, version, groups, llama)
        x = x + _mlp(_norm(x, ranks[0], "post_attention_layernorm."), ranks, llama)
    x = _norm(x, last[0], "")
    return x @ torch.cat([rank["output" if llama else "words"] for rank in (last if llama else embedding)]).T


def _norm(x: Tensor, rank: Rank, prefix: str) -> Tensor:
    weight, bias = rank[f"{prefix}weight"], rank.get(f"{prefix}bias")
    if bias is not None:
        return F.layer_norm(x, (HIDDEN,), weight, bias, EPSILON)
    return x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight


def _attention(x: Tensor, ranks: list[Rank], version: float, groups: int, llama: bool) -> Tensor:
    total = torch.zeros_like(x)
    for rank in ranks:
        mixed = F.linear(
            x, rank["self_attention.query_key_value.weight"], rank.get("self_attention.query_key_value.bias")
        )
        heads, own = HEADS // len(ranks), groups // len(ranks)
        start = mixed.shape[:2]
        if version == 0:
            q, k, v = mixed.view(*start, 3, heads, WIDTH).unbind(2)
        elif version == 1:
            q, k, v = mixed.view(*start, heads, WIDTH, 3).unbind(4)
        else:
            grouped = mixed.view(*start, own, (heads // own + 2) * WIDTH)
            q = grouped[..., : heads // own * WIDTH].reshape(*start, heads, WIDTH)
            k = grouped[..., -2 * WIDTH : -WIDTH].repeat_interleave(heads // own, dim=2)
            v = grouped[..., -WIDTH:].repeat_interleave(heads // own, dim=2)
        if llama:
            q, k = _turn(q), _turn(k)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / WIDTH**0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        context = torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(later, float("-inf")).softmax(-1), v)
        total = total + context.reshape(*start, -1) @ rank["self_attention.dense.weight"].T
    return total if llama else total + ranks[0]["self_attention.dense.bias"]


def _turn(x: Tensor) -> Tensor:
    """Turn by frequencies of :data:`BASE`, the halves of a head paired."""
    frequency = 1 / BASE ** (torch.arange(0, WIDTH, 2) / WIDTH)
    angle = torch.outer(torch.arange(x.shape[1]).float(), frequency).repeat(1, 2)[:, None]
    turned = torch.cat([-x[..., WIDTH // 2 :], x[..., : WIDTH // 2]], dim=-1)
    return x * angle.cos() + turned * angle.sin()


def _mlp(x: Tensor, ranks: list[Rank], llama: bool) -> Tensor:
    total = torch.zeros_like(x)
    for rank in ranks:
        wide = F.linear(x, rank["mlp.dense_h_to_4h.weight"], rank.get("mlp.dense_h_to_4h.bias"))
        if llama:
            gate, up = wide.chunk(2, dim=-1)
            wide = F.silu(gate) * up
        else:
            wide = F.gelu(wide, approximate="tanh")
        total = total + wide @ rank["mlp.dense_4h_to_h.weight"].T
    return total if llama else total + ranks[0]["mlp.dense_4h_to_h.bias"]


def stage_model(chunks: list[list[Rank]], layers: range, rank: int, *, old: bool = False) -> Rank:
    """Return ``model`` of a pipeline stage's file: nested dictionaries, in old files with old names."""
    encoder: Rank = {}
    for at, layer in enumerate(layers):
        for name, each in chunks[1 + layer][rank].items():
            encoder[f"layers.{at}.{name.replace('self_attention', 'attention') if old else name}"] = each
    language_model: Rank = {}
    total = len(chunks) - 2
    model: Rank = {"language_model": language_model}
    if layers.start == 0:
        embedding = chunks[0][rank]
        language_model["embedding"] = {"word_embeddings": {"weight": embedding["words"]}}
        if "positions" in embedding:
            language_model["embedding"]["position_embeddings"] = {"weight": embedding["positions"]}
    if layers.stop == total:
        last = chunks[-1][rank]
        encoder |= {f"final_layernorm.{name}": each for name, each in last.items() if name != "output"}
        if "output" in last:
            language_model["output_layer"] = {"weight": last["output"]}
        elif layers.start:
            model["word_embeddings_for_head"] = {"weight": chunks[0][rank]["words"]}
    language_model["transformer" if old else "encoder"] = encoder
    return model


def save(
    folder: Path,
    chunks: list[list[Rank]],
    *,
    pipe: int = 1,
    old: bool = False,
    name: str = "iter_0000040",
    **content: Any,
) -> Path:
    """Write the files of TP x PP ranks and the tracker; ``content`` joins or replaces what a file holds."""
    degree, total = len(chunks[0]), len(chunks) - 2
    args = arguments(num_layers=total, tensor_model_parallel_size=degree, pipeline_model_parallel_size=pipe)
    for stage in range(pipe):
        layers = range(stage * total // pipe, (stage + 1) * total // pipe)
        for rank in range(degree):
            path = folder / name / (f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if pipe > 1 else ""))
            path.mkdir(parents=True)
            held = {"args": args, "iteration": 40, "model": stage_model(chunks, layers, rank, old=old), **content}
            held = {key: each for key, each in held.items() if each is not None}
            torch.save(held, path / "model_optim_rng.pt", _use_new_zipfile_serialization=not old)
    tracker = name.removeprefix("iter_").lstrip("0")
    (folder / "latest_checkpointed_iteration.txt").write_text(tracker)
    return folder / name
