"""Which conventions of a checkpoint a run may change: the words of ``ALLOW_CHANGES``."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection, Iterator

from megads.config.rules.advice import Problem
from megads.config.schema import RunConfig
from megads.config.tree import env_name
from megads.families.conventions import BY_KEY

REPLAY = "replay"
"""The word that allows another loss of the stored batch."""


def words_of(run: RunConfig) -> list[str]:
    """Return the words of ``ALLOW_CHANGES``, in lower case; names of settings as the keys of what they decide."""
    keys = {env_name(each.setting).lower(): each.key for each in BY_KEY.values() if each.setting}
    words = run.checkpoint.allow_changes.replace(",", " ").lower().split()
    return [keys.get(word, word) for word in words]


def allowed(run: RunConfig) -> frozenset[str]:
    """Return the keys of the conventions that may differ from the checkpoint's, and whether the loss may."""
    return frozenset(words_of(run))


def allow_text(keys: Collection[str]) -> str:
    """Return how a message says that a run may change these conventions; empty where their weights do not fit."""
    words = " ".join(keys)
    fit = all(key in BY_KEY and BY_KEY[key].keeps_shapes for key in keys)
    return f", ALLOW_CHANGES={shlex.quote(words)} changes it with the weights as they are" if fit else ""


def _words(run: RunConfig, world_size: int) -> Iterator[Problem]:
    known = [REPLAY, *(each.key for each in BY_KEY.values() if each.keeps_shapes)]
    for word in words_of(run):
        if word in known:
            continue
        text = f"ALLOW_CHANGES={run.checkpoint.allow_changes}: {word} is not a convention that a resume can change"
        near = difflib.get_close_matches(word, known, 3, 0.5) or known[:3]
        yield Problem(text, otherwise=f"words such as {', '.join(near)} (docs/checkpoints.md lists all)")


RULES = (_words,)
