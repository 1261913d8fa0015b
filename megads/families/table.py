"""All families, by the values of ``model.family``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from megads.families.bert import BERT
from megads.families.family import Family, HuggingFace
from megads.families.gpt import GPT
from megads.families.llama import LLAMA
from megads.families.olmo2 import OLMO2
from megads.families.qwen3 import QWEN3
from megads.families.retro import RETRO
from megads.families.scoring import scoring_classes
from megads.families.t5 import T5

FamilyName = Literal["llama", "gpt", "qwen3", "olmo2", "bert", "t5", "retro"]
FAMILIES: dict[FamilyName, Family] = {
    "llama": LLAMA,
    "gpt": GPT,
    "qwen3": QWEN3,
    "olmo2": OLMO2,
    "bert": BERT,
    "t5": T5,
    "retro": RETRO,
}
FAMILY_DEFAULTS: dict[str, Mapping[str, Any]] = {name: each.defaults for name, each in FAMILIES.items()}
"""Dotted setting -> its default in a family, below presets in precedence."""

CLASSES: dict[str, HuggingFace] = {each.name: each for family in FAMILIES.values() for each in family.classes}
"""The classes of transformers that can be read and written, by name."""

SCORING: dict[str, HuggingFace] = scoring_classes(iter(FAMILIES.values()))
"""Those with the head of a task in place of the output layer."""
ALL_CLASSES = {**CLASSES, **SCORING}


def described_by(model: Any) -> FamilyName:
    """Return the family that has the parts of a derived ``model``: the one it names, else the first that has them.

    An imported model has them from its checkpoint, and its name from the preset.
    """

    def fits(each: HuggingFace) -> bool:
        return each.suits_all(model) and all(getattr(model, name) in values for name, values in each.needs.items())

    samples = FAMILIES[model.family].samples
    names: tuple[FamilyName, ...] = (
        model.family,
        *(name for name, family in FAMILIES.items() if family.samples == samples),
    )
    return next((name for name in names if any(map(fits, FAMILIES[name].classes))), names[0])


def family_of(architecture: str) -> FamilyName:
    """Return the family of a class of transformers in :data:`ALL_CLASSES`."""
    kind = ALL_CLASSES[architecture].model_type
    return next(name for name, family in FAMILIES.items() if any(each.model_type == kind for each in family.classes))
