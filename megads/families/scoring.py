"""The classes of transformers that score texts: those of a family with the head of a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from megads.families.config_json import ConfigJson
from megads.families.family import Family, HuggingFace

_LABEL = "LABEL_{}"
"""How transformers calls a class without a name."""


def scoring_classes(families: Iterator[Family]) -> dict[str, HuggingFace]:
    """Return by name the classes with a head that ``families`` have."""
    return {each.name: each for family in families for base in family.classes for each in _with_heads(base)}


def _with_heads(base: HuggingFace) -> Iterator[HuggingFace]:
    if base.decoder:
        return
    if not base.is_encoder:
        name = base.name.replace("ForCausalLM", "").replace("LMHeadModel", "")
        yield _with_head(base, f"{name}ForSequenceClassification", "score", base.suits, has_choices=False)
    elif base.name.endswith("ForPreTraining"):
        name = base.name.removesuffix("ForPreTraining")
        for has_choices, end in ((False, "ForSequenceClassification"), (True, "ForMultipleChoice")):
            suits = partial(_has_form, positions=base.needs["norm_position"], has_choices=has_choices)
            yield _with_head(base, f"{name}{end}", "classifier", suits, has_choices=has_choices)


def _has_form(model: Any, *, positions: tuple[str, ...], has_choices: bool) -> bool:
    """Return whether an encoder has its norms there and a head for classes, or one for choices."""
    return model.norm_position in positions and (model.num_classes == 1) == has_choices


def _with_head(base: HuggingFace, name: str, head: str, suits: Any, *, has_choices: bool) -> HuggingFace:
    return replace(
        base,
        name=name,
        suits=suits,
        read=partial(_read, base=base, has_choices=has_choices),
        write=partial(_write, base=base, has_choices=has_choices),
        outside={**base.outside, "classifier": head},
        differs=lambda model: "",
    )


def _read(config: ConfigJson, *, base: HuggingFace, has_choices: bool) -> dict[str, Any]:
    if has_choices:
        return {**base.read(config), "num_classes": 1}
    config.expect("problem_type", ("single_label_classification",), "single_label_classification")
    return {**base.read(config), "num_classes": len(names_in(config)) or config.size("num_labels", 2)}


def _write(model: Any, more: Mapping[str, Any], *, base: HuggingFace, has_choices: bool) -> dict[str, Any]:
    found = base.write(model, more)
    if has_choices:
        return found
    names = list(more.get("classes") or map(_LABEL.format, range(model.num_classes)))
    labels = {"id2label": {str(at): name for at, name in enumerate(names)}}
    return {**found, **labels, "label2id": {name: at for at, name in enumerate(names)}}


def names_in(config: ConfigJson) -> list[str]:
    """Return the names of the classes in their order; empty where a ``config.json`` has none.

    Raises:
        CheckpointError: they are not numbered from 0 on, or not texts.
    """
    given = config.get("id2label", {})
    names = [given.get(str(at)) for at in range(len(given))] if isinstance(given, dict) else [None]
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise config.error(f"id2label is {given!r:.60}, expected names that differ, numbered from 0 on")
    return [str(name) for name in names]


def has_own_names(names: list[str]) -> bool:
    """Return whether classes have names that somebody gave them."""
    return len(names) > 1 and names != [_LABEL.format(at) for at in range(len(names))]
