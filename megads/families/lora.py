"""Adapters of low rank (LoRA, arXiv 2106.09685): which matrices of a layer get one, and their parameters.

``y = W x + scale * B A x``: only A and B are trained. A projection that is fused here has an adapter for each part that
transformers keeps apart (q, k, v of Llama; gate and up) and one for all where it keeps them together (c_attn of
GPT-2), so that adapters mean what they mean in peft. Of the parts that share an ``x`` the A's lie on top of each
other, and the B's behind each other, as the rows of the parts do.
"""
# ruff: noqa: D102

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from megads.families.spec import Parameter

A, B = "lora_a", "lora_b"
PARTS: Mapping[str, tuple[str, ...]] = {
    "attention.qkv": ("q", "k", "v"),
    "attention.out": ("out",),
    "mlp.gate_up": ("gate", "up"),
    "mlp.up": ("up",),
    "mlp.down": ("down",),
}
"""Projection -> the words for its parts, in their order."""

WORDS: Mapping[str, tuple[str, ...]] = {
    **{word: (word,) for words in PARTS.values() for word in words},
    "qkv": ("q", "k", "v"),
    "gate_up": ("gate", "up"),
    "all": ("q", "k", "v", "out", "gate", "up", "down"),
}
"""Word of ``LORA_TARGETS`` -> parts."""

NAMES: Mapping[str, str] = {
    **{f"{word}_proj": word for word in ("q", "k", "v", "gate", "up", "down")},
    **{"o_proj": "out", "all-linear": "all", "linear_qkv": "qkv", "linear_proj": "out"},
    **{"linear_fc1": "gate_up", "linear_fc2": "down", "c_attn": "qkv", "c_fc": "up"},
}
"""Words of peft, transformers and Megatron -> ours."""

FUSED = ("attention.qkv",)
"""What GPT-2's class of transformers keeps together."""


class Adapted(Protocol):
    """The settings that decide the adapters, declared in ``megads.config.settings.model``; derived."""

    @property
    def lora_rank(self) -> int: ...
    @property
    def lora_alpha(self) -> float: ...
    @property
    def lora_targets(self) -> str: ...
    @property
    def position_embedding(self) -> str: ...


@dataclass(frozen=True)
class Adapter:
    """The adapters of one projection.

    Attributes:
        parts: indices of the parts of the projection that have one.
        ranks: rows of A for each of ``parts``; a single number where all share an A.
    """

    parts: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def is_shared(self) -> bool:
        """Whether several parts have one A together."""
        return len(self.ranks) < len(self.parts)


def unknown_words(targets: str) -> list[str]:
    """Return the words of ``LORA_TARGETS`` that name nothing."""
    return [word for word in targets.replace(",", " ").split() if NAMES.get(word, word) not in WORDS]


def parts_of(targets: str) -> tuple[str, ...]:
    """Return the parts that ``LORA_TARGETS`` names, in the order of a layer; unknown words name none."""
    words = [NAMES.get(word, word) for word in targets.replace(",", " ").split()]
    found = {part for word in words for part in WORDS.get(word, ())}
    return tuple(part for part in WORDS["all"] if part in found)


def adapter_of(model: Adapted, projection: str) -> Adapter | None:
    """Return the adapters of ``projection``, such as ``attention.qkv``; None where it has none."""
    words = PARTS.get(projection)
    if not model.lora_rank or words is None:
        return None
    wanted = parts_of(model.lora_targets)
    parts = tuple(i for i, word in enumerate(words) if word in wanted)
    if not parts:
        return None
    is_shared = len(parts) == len(words) and model.position_embedding == "learned" and projection in FUSED
    return Adapter(parts, (model.lora_rank,) * (1 if is_shared else len(parts)))


def scale_of(model: Adapted) -> float:
    """Return what the adapters' output is multiplied by."""
    return model.lora_alpha / model.lora_rank


def with_adapters(model: Adapted, layer: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """Return the parameters of ``layer`` with those of its adapters, each behind its projection.

    Of a projection whose output features are cut A is whole and B is cut; else A is cut and B is whole.
    """
    return tuple(found for each in layer for found in (each, *_adapters(model, each)))


def _adapters(model: Adapted, weight: Parameter) -> Iterator[Parameter]:
    projection, _, last = weight.name.rpartition(".")
    adapter = adapter_of(model, projection) if last == "weight" else None
    if adapter is None:
        return
    rows, width = sum(adapter.ranks), weight.shape[1]
    if weight.dim == 1:
        yield Parameter(f"{projection}.{A}", (rows, width), "adapter", 1, weight.parts)
        yield Parameter(f"{projection}.{B}", (weight.shape[0], model.lora_rank), "adapter")
        return
    outputs = tuple(weight.parts[i] for i in adapter.parts)
    yield Parameter(f"{projection}.{A}", (rows, width), "adapter")
    yield Parameter(f"{projection}.{B}", (sum(outputs), model.lora_rank), "adapter", 0, outputs)
