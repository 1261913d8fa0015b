"""``config.json`` and our settings, in both directions. No torch."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from megads.checkpoint.convert.huggingface.dtypes import LONG
from megads.checkpoint.convert.huggingface.read_tensors import read_json
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError
from megads.families.bert import BARE, POOLER, PREFIX, class_with_heads
from megads.families.config_json import ConfigJson
from megads.families.scoring import has_own_names, names_in
from megads.families.table import ALL_CLASSES, CLASSES, FAMILIES, SCORING, family_of

CONFIG = "config.json"
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")

KEPT = ("family", "seq_length", "init_std", "hidden_dropout", "attention_dropout")
"""Settings of the model that do not decide what its weights mean."""


@dataclass(frozen=True)
class ModelDescription:
    """A folder's model in our settings, and what else its ``config.json`` says."""

    architecture: str  # class of transformers
    model: ModelConfig  # derived
    more: Mapping[str, Any]  # what only an export needs
    longest: int = 0  # tokens of a sample for which attention without a window computes the same; 0: any
    notes: tuple[str, ...] = ()  # what a user should know of the import
    has_heads: bool = True  # of pretraining; a BertModel has none


def describe(folder: Path, vocab_multiple: int) -> ModelDescription:
    """Return what the ``config.json`` of ``folder`` describes; our vocabulary is padded to ``vocab_multiple``.

    Raises:
        CheckpointError: it is not such a folder, or of a model that ours cannot compute; the message names what.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(_no_config(folder))
    config = ConfigJson(path, read_json(path))
    architecture = _architecture(config)
    config.refuse("quantization_config", "quantised weights; import the model it was made from")
    row = ALL_CLASSES[architecture]
    settings = {"family": family_of(architecture), **row.read(config)}
    try:
        model = ModelConfig(vocab_multiple=vocab_multiple, **settings)
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(f"{path}: {first['loc'][0]} = {first['input']!r:.40}: {first['msg'].lower()}") from None
    if model.num_heads % model.num_kv_heads:
        raise config.error(f"{model.num_heads} heads cannot share {model.num_kv_heads} key/value heads")
    window = row.window(config)
    more: dict[str, Any] = {"max_position_embeddings": model.seq_length, "sliding_window": window}
    if model.num_classes and has_own_names(names := names_in(config)):
        more["classes"] = names
    kept = {name: getattr(model, name) for name in KEPT}
    has_heads = not set(config.words("architectures")) & set(BARE)
    return ModelDescription(architecture, model, {**more, "settings": kept}, window or 0, has_heads=has_heads)


def with_heads(found: ModelDescription, tensors: Container[str]) -> ModelDescription:
    """Return the description of a folder that holds ``tensors``: of BERT with the heads that are there, and a line."""
    if not found.has_heads:
        return _with_new_heads(found, tensors)
    name = class_with_heads(found.architecture, tensors)
    notes = []
    if name != found.architecture:
        model = found.model.model_copy(update={"binary_head": not found.model.binary_head})
        what = "holds the pooler and the binary head" if model.binary_head else "holds no binary head"
        notes.append(f"{CONFIG} says {found.architecture}, and the folder {what}: imported as {name}")
        found = replace(found, architecture=name, model=model)
    if found.model.family == "bert" and not found.model.binary_head and f"{POOLER}.weight" in tensors:
        notes.append(f"{POOLER} is skipped: only the binary head would read it")
    return replace(found, notes=tuple(notes))


def _with_new_heads(found: ModelDescription, tensors: Container[str]) -> ModelDescription:
    """Return the description of a BertModel with the heads of pretraining; a pooler is read for the binary one only."""
    has_pooler = any(f"{name}.weight" in tensors for name in (POOLER, POOLER.removeprefix(PREFIX)))
    note = "the folder holds no heads of pretraining: new ones are drawn, which finetuning does not read"
    name = found.architecture if has_pooler else found.architecture.replace("PreTraining", "MaskedLM")
    model = found.model.model_copy(update={"binary_head": has_pooler})
    return replace(found, architecture=name, model=model, notes=(note,))


def _no_config(folder: Path) -> str:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "no such folder"
        return f"{folder}: {what}; pass the local folder of a model, nothing is downloaded"
    if (folder / "params.json").is_file() or any(folder.glob("consolidated.*")):
        return (
            f"{folder}: is Meta's own form of the weights; fetch the model's config.json and *.safetensors, "
            "or convert it with transformers' convert_llama_weights_to_hf.py"
        )
    if (folder / "adapter_config.json").is_file():
        return f"{folder}: is an adapter, not a model; merge it into its model first (peft: merge_and_unload)"
    return f"{folder}: has no {CONFIG}; it is not a folder of a Hugging Face model"


def _architecture(config: ConfigJson) -> str:
    named = config.words("architectures")
    if not named:
        named = [name for name, each in CLASSES.items() if each.model_type == config.get("model_type", "")]
    for name in named:
        if BARE.get(name, name) in ALL_CLASSES:
            return BARE.get(name, name)
    what = ", ".join(named) or f"model_type {config.get('model_type', 'none')}"
    raise config.error(f"the architecture {what} is not supported; {', '.join(ALL_CLASSES)} are")


def architecture_of(model: ModelConfig, wanted: str = "") -> str:
    """Return the class of transformers that computes what the derived ``model`` does.

    ``wanted`` is the class as which it was imported; empty: the first that fits.

    Raises:
        CheckpointError: none does, or not the wanted one.
    """
    if not FAMILIES[model.family].classes:
        raise CheckpointError(f"no class of transformers computes a model of the family {model.family}")
    rows = SCORING if model.num_classes else CLASSES
    suiting = [name for name, each in rows.items() if each.suits_all(model)]
    kind = ALL_CLASSES[wanted].model_type if wanted in ALL_CLASSES else ""
    alike = [name for name in suiting if rows[name].model_type == kind]
    chosen = rows[wanted if wanted in suiting else (alike or suiting)[0]]
    misfits = (
        f"{setting}={_text(getattr(model, setting))}, it has {' or '.join(map(_text, accepted))}"
        for setting, accepted in chosen.needs.items()
        if getattr(model, setting) not in accepted
    )
    what = next(misfits, "") or chosen.misfit(model)
    if what:
        raise CheckpointError(f"no class of transformers computes this model: {chosen.name} has no {what}")
    return chosen.name


def _text(value: object) -> str:
    return str(int(value) if isinstance(value, bool) else value)


def config_of(
    model: ModelConfig, architecture: str, dtype: str, ids: Mapping[str, Any], more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of ``config.json``, for transformers 4 and 5 alike.

    ``ids`` are those of the tokens in :data:`SPECIAL`; missing ones are written as null, or transformers would
    take 1 and 2. ``more`` are max_position_embeddings and sliding_window of what was imported.
    """
    return {
        "architectures": [architecture],
        "model_type": ALL_CLASSES[architecture].model_type,
        "dtype": LONG[dtype],
        "torch_dtype": LONG[dtype],  # for transformers 4
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tied_embeddings,
        "initializer_range": model.init_std or 0.02,
        "use_cache": True,
        **{name: ids.get(name) for name in SPECIAL},
        **ALL_CLASSES[architecture].write(model, more),
    }
