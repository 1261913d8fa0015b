"""Which kernel ``scaled_dot_product_attention`` takes for every form of attention of a model: asked before it trains.

Torch decides for each call, by shapes, types and strides, and says nothing where only its math kernel is left: that
keeps all scores, ``heads x S x S`` of every layer and sample, and is many times slower. So the modules' own code is
run once with tensors of the run's shapes, and each call is asked about instead of computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.schema import RunConfig
from megads.errors import ConfigError
from megads.families.encoder_decoder import has_decoder
from megads.models.attention import Attention
from megads.models.chunk_attention import ChunkAttention, NeighborAttention, TextAttention
from megads.models.cross_attention import CrossAttention, RelativeAttention
from megads.parallel.documents import Lengths, find_documents

LONGEST_MATH = 1024
"""Keys of a row from where on an accelerator's math kernel is refused."""

UNKNOWN = "not known"
MATH = SDPBackend.MATH.name.lower()
GIB = 2**30


@dataclass(frozen=True)
class Call:
    """The arguments of one call of ``scaled_dot_product_attention``: ``[B, heads, S, D]`` each."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    def __str__(self) -> str:
        heads, shared = self.query.shape[1], self.key.shape[1]
        grouped = f" ({shared} kv)" if shared != heads else ""
        dropout = f", dropout {self.dropout_p:g}" if self.dropout_p else ""
        return f"{heads} heads{grouped} of {self.query.shape[-1]}, {self.key.shape[2]} tokens{dropout}"

    @property
    def score_bytes(self) -> int:
        """Bytes of its scores in float32."""
        return 4 * self.query.shape[0] * self.query.shape[1] * self.query.shape[2] * self.key.shape[2]


Choose = Callable[[Call], str]


def chosen_by_torch(call: Call) -> str:
    """Return the kernel's name in ``torch.nn.attention.SDPBackend``; :data:`UNKNOWN` where torch cannot say."""
    ask = getattr(torch, "_fused_sdp_choice", None)
    if ask is None:
        return UNKNOWN
    mask, scale = call.attn_mask, call.scale
    try:
        value = ask(
            call.query,
            call.key,
            call.value,
            mask,
            call.dropout_p,
            call.is_causal,
            scale=scale,
            enable_gqa=call.enable_gqa,
        )
    except (RuntimeError, NotImplementedError):  # a device that has no such question
        return UNKNOWN
    return str(SDPBackend(value).name).lower()


@dataclass(frozen=True)
class Form:
    """One form of attention of a model, and the kernel that it gets."""

    name: str
    call: Call
    backend: str

    def __str__(self) -> str:
        return f"{self.name} {self.backend} ({self.call})"


class _Asked(TorchFunctionMode):
    """Notes every call of ``scaled_dot_product_attention`` and computes none."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        call = Call(*args, **(kwargs or {}))
        self.calls.append(call)
        return torch.empty_like(call.query)


def attention_forms(
    module: nn.Module, run: RunConfig, device: torch.device, choose: Choose = chosen_by_torch
) -> list[Form]:
    """Return every form of attention that ``module``, a model or a stage of a derived ``run``, computes with SDPA."""
    found: dict[str, Form] = {}
    for each in module.modules():
        if not isinstance(each, (Attention, CrossAttention)) or each.flash is not None:
            continue
        for name, call in _calls(each, run, device):
            key = f"{name} {call}"
            if key not in found:
                found[key] = Form(name, call, choose(call))
    return list(found.values())


def _calls(module: Attention | CrossAttention, run: RunConfig, device: torch.device) -> Iterator[tuple[str, Call]]:
    """Yield the calls of one module, with and without dropout."""
    was_training = module.training
    try:
        for training in dict.fromkeys((module.dropout > 0, False)):
            module.training = training
            for name, attend in _ways(module, run, device):
                with _Asked() as asked, torch.enable_grad():
                    attend()
                yield from ((name, call) for call in asked.calls)
    finally:
        module.training = was_training


def _ways(
    module: Attention | CrossAttention, run: RunConfig, device: torch.device
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what the module may be asked to do, under a name."""
    model, rows = run.model, run.train.micro_batch
    lengths = Lengths(torch.full((rows,), model.seq_length, device=device), model.seq_length)
    if isinstance(module, TextAttention | NeighborAttention | ChunkAttention):
        name, batch, queries, keys = _of_retro(module, run)
        q, _, _ = _heads(module, batch, queries, device)
        _, k, v = _heads(module, batch, keys, device)
        yield name, lambda: module._attend(None, None, q, k, v)
        return
    if isinstance(module, CrossAttention):
        q, _, _ = _heads(module, run, model.decoder_seq_length, device)
        _, k, v = _heads(module, run, model.seq_length, device)
        yield "cross", lambda: module._attend(lengths, None, q, k, v)
        return
    is_second = module.is_causal and has_decoder(model)
    length = model.decoder_seq_length if is_second else model.seq_length
    q, k, v = _heads(module, run, length, device)
    name = "causal" if module.is_causal else "encoder"
    if isinstance(module, RelativeAttention):
        table = torch.zeros(model.relative_buckets, q.shape[2], device=device, dtype=q.dtype, requires_grad=True)
        real = None if module.is_causal else lengths
        yield f"{name} relative", lambda: module._attend_relative(real, None, q, k, v, table)
        return
    yield name, lambda: module._attend(None if module.is_causal else lengths, None, q, k, v)
    if module.is_causal and run.data.reset_attention_mask and length > 2:
        # Documents of two thirds and one third of a row: stacks of two lengths.
        tokens = torch.zeros(rows, length, dtype=torch.int64)
        tokens[:, 2 * length // 3] = 1
        documents = find_documents(tokens.to(device), 1, Groups(Grid(), 0), reset_positions=False, reset_attention=True)
        assert documents is not None
        segments = documents.segments
        yield "documents", lambda: module._attend(segments, None, q, k, v)


def _of_retro(module: nn.Module, run: RunConfig) -> tuple[str, RunConfig, int, int]:
    """Return the name of a form of Retro, the run whose micro-batch has its rows, and its queries and keys in a row."""
    chunk, neighbors = run.model.retro_chunk_length, run.model.retro_num_neighbors
    retrieved, rows = chunk * run.model.retro_retrieved_chunks, run.model.seq_length // chunk // run.parallel.sequence
    if isinstance(module, TextAttention):
        name, rows, queries, keys = "neighbour", rows * neighbors, retrieved, retrieved
    elif isinstance(module, NeighborAttention):
        name, queries, keys = "neighbour to chunk", neighbors * retrieved, chunk
    else:
        name, queries, keys = "chunk to neighbours", chunk, neighbors * retrieved
        rows += run.parallel.sequence > 1  # that of the rank before
    many = run.train.model_copy(update={"micro_batch": run.train.micro_batch * rows})
    return name, run.model_copy(update={"train": many}), queries, keys


def _heads(
    module: Attention | CrossAttention, run: RunConfig, length: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values ``[B, S, heads, D]`` as the module gets them: views of one tensor."""
    rows, share = run.train.micro_batch, module.exchange.share if module.exchange else None
    queries = len(share.queries) if share else module.num_heads
    keys = len(share.keys) if share else module.num_kv_heads
    sizes = (queries, keys, keys)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[run.train.dtype]
    # Behind the exchange of sequence ranks tokens come first in memory.
    shape = (length, rows) if share else (rows, length)
    heads = torch.empty(*shape, sum(sizes), module.head_dim, dtype=dtype, device=device, requires_grad=True)
    q, k, v = (heads.transpose(0, 1) if share else heads).split(sizes, dim=2)
    return q, k, v


def check_backends(forms: list[Form], run: RunConfig, device: torch.device, choose: Choose = chosen_by_torch) -> None:
    """Refuse math attention over long rows on an accelerator, unless ``train.sdpa_math`` allows it.

    Raises:
        ConfigError: what gets the math kernel, its memory, and which changes would get another one.
    """
    if device.type == "cpu" or run.train.sdpa_math:
        return
    for form in forms:
        if form.backend == MATH and form.call.key.shape[2] > LONGEST_MATH:
            instead = [name for name, call in _changes(form.call, run) if choose(call) not in (MATH, UNKNOWN)]
            advice = f"{' or '.join(instead)} would not" if instead else "a newer torch may not"
            raise ConfigError(
                f"scaled_dot_product_attention takes its math kernel for {form.name} attention ({form.call}) on "
                f"{device.type} in {run.train.dtype}: {form.call.score_bytes / GIB:.1f} GiB of scores in every layer; "
                f"{advice}; SDPA_MATH=1 allows it"
            )


def _changes(call: Call, run: RunConfig) -> Iterator[tuple[str, Call]]:
    """Yield settings that change a call, one each, and the call."""
    mask = call.attn_mask
    if call.query.dtype == torch.float32:
        parts = (call.query.bfloat16(), call.key.bfloat16(), call.value.bfloat16())
        cast = mask.bfloat16() if mask is not None and mask.is_floating_point() else mask
        yield "DTYPE=bf16", replace(call, query=parts[0], key=parts[1], value=parts[2], attn_mask=cast)
    if call.dropout_p:
        yield "ATTENTION_DROPOUT=0", replace(call, dropout_p=0.0)
    if missing := -call.query.shape[-1] % 8:
        q, k, v = (F.pad(each, (0, missing)) for each in (call.query, call.key, call.value))
        yield f"HEAD_DIM={q.shape[-1]}", replace(call, query=q, key=k, value=v)
    if call.enable_gqa and call.query.shape[1] != call.key.shape[1]:
        k, v = (each.repeat_interleave(call.query.shape[1] // each.shape[1], dim=1) for each in (call.key, call.value))
        yield f"NUM_KV_HEAD={run.model.num_heads}", replace(call, key=k, value=v, enable_gqa=False)
