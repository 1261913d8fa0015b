"""Which of peft's adapters is which part of ours, for both directions.

peft has an adapter for every linear layer of a class of transformers: for q, k and v of Llama each, and one for GPT-2's
c_attn. Ours are fused as our projections are, see ``megads.families.lora``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megads.families.family import HuggingFace
from megads.families.lora import PARTS

PREFIX = "base_model.model."
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class Module:
    """A linear layer of transformers, and what it is here.

    Attributes:
        name: within a layer, as ``self_attn.q_proj``.
        projection: ours, as ``attention.qkv``.
        parts: of the projection, by index.
    """

    name: str
    projection: str
    parts: tuple[int, ...]

    def tensor(self, row: HuggingFace, layer: int, which: str) -> str:
        """Return the name of its ``lora_A`` or ``lora_B``."""
        return f"{PREFIX}{row.layers}.{layer}.{self.name}.{which}.weight"


def modules_of(row: HuggingFace) -> Iterator[Module]:
    """Yield the linear layers of a layer of the class ``row``."""
    for theirs, ours, part in row.inside:
        if ours in PARTS:
            yield Module(theirs, ours, tuple(range(len(PARTS[ours]))) if part is None else (part,))


def short_names(chosen: list[Module], row: HuggingFace) -> list[str]:
    """Return what ``target_modules`` says: the last part of a name where no other module has it, as people write it."""
    others = [each.name.rpartition(".")[2] for each in modules_of(row) if each not in chosen]
    found = [each.name if each.name.rpartition(".")[2] in others else each.name.rpartition(".")[2] for each in chosen]
    return sorted(set(found))
