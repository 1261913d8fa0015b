"""Options of Megatron-LM's command lines on commands that use a trained model, such as ``megads evaluate``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from megads.config.schema import ModelConfig
from megads.data.tokenizers.base import TokenizerSpec
from megads.errors import ConfigError
from megads.text.plural import listed

SHAPE = (
    *("num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_hidden_size", "head_dim", "normalization"),
    *("activation", "position_embedding", "tied_embeddings", "family"),
)
"""Settings of the model that its files decide; a command may repeat them."""

TOKENIZER = {
    "data.tokenizer_type": "type",
    "data.tokenizer_model": "model",
    "data.vocab_file": "vocab_file",
    "data.merge_file": "merge_file",
    "data.vocab_extra_ids": "extra_ids",
}
"""Setting -> attribute of a :class:`TokenizerSpec`."""


@dataclass(frozen=True)
class ModelFlags:
    """What Megatron-LM's options say about a trained model.

    Attributes:
        dtype: of the weights; empty: as in training.
        tokenizer: what the options name; None: nothing.
        shape: attribute of the model -> what the command says, and with which option.
        split: shares of train, valid and test; empty: not given.
        without_effect: options that change nothing here.
    """

    dtype: str = ""
    tokenizer: TokenizerSpec | None = None
    shape: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    split: str = ""
    without_effect: tuple[str, ...] = ()

    def check(self, model: ModelConfig) -> None:
        """Compare with the model that was loaded.

        Raises:
            ConfigError: the command says something else than the files.
        """
        for name, (value, option) in self.shape.items():
            found = getattr(model, name)
            if found != value:
                raise ConfigError(
                    f"{option}: the model has {found}; drop the option, or load the model that it describes"
                )

    def note(self) -> str:
        """Return a line about options that change nothing; empty without any."""
        names = self.without_effect
        return f"{listed(names)} {'have' if len(names) > 1 else 'has'} no effect here" if names else ""


def read_model_flags(flags: Sequence[tuple[str, str]]) -> ModelFlags:
    """Return what ``flags`` say: options with the words that follow them.

    Raises:
        ConfigError: a value that cannot be, or two options that differ.
    """
    if not flags:
        return ModelFlags()
    from megads.config.sources.flags import read_flags

    given = read_flags(flags).given
    used = {name: (value, origin.detail) for name, (value, origin) in given.items() if origin.detail.startswith("--")}
    tokenizer = {TOKENIZER[name]: value for name, (value, _) in used.items() if name in TOKENIZER}
    shape = {name: used[f"model.{name}"] for name in SHAPE if f"model.{name}" in used}
    words = dict(flags)
    meant = {name for name in used if name in TOKENIZER or name in ("train.dtype", "data.split")}
    effective = {used[name][1] for name in meant} | {option for _, option in shape.values()}
    return ModelFlags(
        dtype=used.get("train.dtype", ("", ""))[0],
        tokenizer=TokenizerSpec(**{"type": "HFTokenizer", **tokenizer}) if tokenizer else None,
        shape={name: (value, f"{option} {words[option]}".strip()) for name, (value, option) in shape.items()},
        split=used.get("data.split", ("", ""))[0],
        without_effect=tuple(option for option in words if option not in effective),
    )
