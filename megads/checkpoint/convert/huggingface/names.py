"""Which of their tensors is which part of ours. Names and shapes, for both directions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megads.checkpoint.format.tensors import parameters_of
from megads.config.schema import ModelConfig


@dataclass(frozen=True)
class Theirs:
    """A tensor of a Hugging Face folder: some rows of one of our parameters."""

    name: str
    ours: str
    first: int  # row of ours that is its first
    rows: int  # how many rows of ours it is
    shape: tuple[int, ...]  # as it lies in their files
    turned: bool = False  # they keep the matrix as [in, out]

    @property
    def width(self) -> int:
        """Numbers in a row of ours."""
        return self.shape[0] if self.turned else (self.shape[1] if len(self.shape) == 2 else 1)


_LLAMA = (
    # theirs, ours, which of the matrices that are fused in ours
    ("input_layernorm", "input_norm", None),
    ("self_attn.q_proj", "attention.qkv", 0),
    ("self_attn.k_proj", "attention.qkv", 1),
    ("self_attn.v_proj", "attention.qkv", 2),
    ("self_attn.o_proj", "attention.out", None),
    ("post_attention_layernorm", "post_norm", None),
    ("mlp.gate_proj", "mlp.gate_up", 0),
    ("mlp.up_proj", "mlp.gate_up", 1),
    ("mlp.down_proj", "mlp.down", None),
)
_GPT2 = (
    ("ln_1", "input_norm", None),
    ("attn.c_attn", "attention.qkv", None),
    ("attn.c_proj", "attention.out", None),
    ("ln_2", "post_norm", None),
    ("mlp.c_fc", "mlp.up", None),
    ("mlp.c_proj", "mlp.down", None),
)


def tensors_of(model: ModelConfig, model_type: str) -> list[Theirs]:
    """Return every tensor of a folder of ``model_type`` (llama, mistral or gpt2), layer by layer.

    The padding rows of our vocabulary are in none of them; a tied output layer is not one of them.
    """
    maker = _Maker(model, turned=model_type == "gpt2")
    if model_type == "gpt2":
        found = [
            *maker.parts("transformer.wte", "embedding", None),
            *maker.parts("transformer.wpe", "positions", None),
            *maker.layers("transformer.h", _GPT2),
            *maker.parts("transformer.ln_f", "final_norm", None),
        ]
    else:
        found = [
            *maker.parts("model.embed_tokens", "embedding", None),
            *maker.layers("model.layers", _LLAMA),
            *maker.parts("model.norm", "final_norm", None),
        ]
    return [*found, *maker.parts("lm_head", "head", None)]


class _Maker:
    def __init__(self, model: ModelConfig, turned: bool):
        self.model, self.turned, self.ours = model, turned, parameters_of(model)

    def layers(self, prefix: str, table: tuple[tuple[str, str, int | None], ...]) -> Iterator[Theirs]:
        for layer in range(self.model.num_layers):
            for theirs, ours, part in table:
                yield from self.parts(f"{prefix}.{layer}.{theirs}", f"layers.{layer}.{ours}", part)

    def parts(self, theirs: str, ours: str, part: int | None) -> Iterator[Theirs]:
        """Yield the weight and the bias, as far as the model has them."""
        for kind in ("weight", "bias"):
            name = f"{ours}.{kind}"
            if name not in self.ours:
                continue
            cut = self.ours[name]
            first, rows = 0, cut.shape[0]
            if part is not None:
                first, rows = sum(cut.parts[:part]), cut.parts[part]
            if ours in ("embedding", "head"):
                rows = self.model.vocab_size
            # GPT-2's linear layers are convolutions, which keep [in, out]; its tables are not.
            turned = self.turned and len(cut.shape) == 2 and ours.startswith("layers.")
            shape = (*cut.shape[1:], rows) if turned else (rows, *cut.shape[1:])
            yield Theirs(f"{theirs}.{kind}", name, first, rows, shape, turned)
