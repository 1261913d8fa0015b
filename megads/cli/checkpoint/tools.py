"""Options of Megatron's ``tools/merge_mp_partitions.py`` and ``tools/checkpoint/util.py``, as scripts have them.

A checkpoint knows its model and its layout, so what these say is compared with it; the tokenizer is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from megads.errors import CheckpointError

if TYPE_CHECKING:
    from megads.config.schema import ModelConfig

_COUNT = click.IntRange(min=1)
_SIZES = {
    "num_layers": "--num-layers",
    "hidden_size": "--hidden-size",
    "num_heads": "--num-attention-heads",
    "max_positions": "--max-position-embeddings",
}
"""Setting of the model -> the option that says it."""

_DEGREES = {"had_tensor": "--tensor-model-parallel-size", "had_pipe": "--pipeline-model-parallel-size"}
_UNREAD = {
    "tokenizer_type": "--tokenizer-type",
    "vocab_file": "--vocab-file",
    "merge_file": "--merge-file",
    "seq_length": "--seq-length",
    "loader": "--loader",
    "saver": "--saver",
}


@dataclass(frozen=True)
class Said:
    """What a command says of the checkpoint that it reads."""

    model_type: str | None
    sizes: Mapping[str, int]  # settings of the model
    tensor: int | None  # its tensor-parallel degree: the command merges its slices
    pipe: int | None

    def check(self, model: ModelConfig, tensor: int, pipe: int) -> None:
        """Raise CheckpointError where a checkpoint of ``model``, TP and PP is not what the command says."""
        found = "T5" if model.decoder_layers else "BERT" if model.family == "bert" else "GPT"
        if self.model_type not in (None, found):
            raise CheckpointError(f"--model-type {self.model_type}: the checkpoint is of a {found}; use that")
        said = [(_SIZES[name], size, getattr(model, name)) for name, size in self.sizes.items()]
        if model.position_embedding != "learned":
            said = [each for each in said if each[0] != _SIZES["max_positions"]]
        for option, given, there in (*said, ("--tensor-model-parallel-size", self.tensor, tensor)):
            if given not in (None, there):
                raise CheckpointError(f"{option} {given}: the checkpoint has {there}; correct it, or drop it")
        if self.pipe not in (None, pipe):
            raise CheckpointError(f"{_DEGREES['had_pipe']} {self.pipe}: the checkpoint has {pipe}; correct it")


def tool_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return ``command`` with these options, which it takes as ``said``; help does not list them."""

    @wraps(command)
    def wrapped(*args: Any, model_type: str | None, **given: Any) -> None:
        had = [given.pop(name) for name in _DEGREES]
        sizes = {name: size for name in _SIZES if (size := given.pop(name)) is not None}
        for name in _UNREAD:
            given.pop(name)
        command(*args, said=Said(model_type, sizes, *had), **given)

    for names, kind in (({**_SIZES, **_DEGREES}, _COUNT), (_UNREAD, None)):
        for name, option in names.items():
            wrapped = click.option(option, name, type=kind, hidden=True)(wrapped)
    return click.option("--model-type", type=click.Choice(["GPT", "BERT", "T5"]), hidden=True)(wrapped)
