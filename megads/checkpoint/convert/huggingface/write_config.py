"""From our settings to ``config.json``. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megads.checkpoint.convert.huggingface.dtypes import LONG
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError
from megads.families.table import CLASSES

SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


def architecture_of(model: ModelConfig, wanted: str = "") -> str:
    """Return the class of transformers that computes what ``model`` does.

    Args:
        model: derived.
        wanted: the class as which it was imported; empty: the first that fits.

    Raises:
        CheckpointError: none does, or not the wanted one.
    """
    suiting = [name for name, each in CLASSES.items() if each.suits(model)]
    chosen = CLASSES[wanted if wanted in suiting else suiting[0]]
    for setting, accepted in chosen.needs.items():
        if (actual := getattr(model, setting)) not in accepted:
            raise _misfit(chosen.name, f"{setting}={_text(actual)}, it has {' or '.join(map(_text, accepted))}")
    if what := chosen.misfit(model):
        raise _misfit(chosen.name, what)
    return chosen.name


def _text(value: object) -> str:
    return str(int(value) if isinstance(value, bool) else value)


def _misfit(architecture: str, what: str) -> CheckpointError:
    return CheckpointError(f"no class of transformers computes this model: {architecture} has no {what}")


def config_of(
    model: ModelConfig, architecture: str, dtype: str, ids: Mapping[str, Any], more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of ``config.json``, for transformers 4 and 5 alike.

    Args:
        model: derived.
        architecture: see :func:`architecture_of`.
        dtype: of the weights: fp32, bf16 or fp16.
        ids: of the tokens in :data:`SPECIAL`; those that there are not are written as null, or
            transformers would take 1 and 2.
        more: of what was imported: max_position_embeddings, sliding_window.
    """
    return {
        "architectures": [architecture],
        "model_type": CLASSES[architecture].model_type,
        "dtype": LONG[dtype],
        "torch_dtype": LONG[dtype],  # for transformers 4
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tied_embeddings,
        "initializer_range": model.init_std or 0.02,
        "use_cache": True,
        **{name: ids.get(name) for name in SPECIAL},
        **CLASSES[architecture].write(model, more),
    }
