"""Runs drawn at random: a model, its data and its training, on a layout that the rules accept.

``python -m pytest tests/parity/test_drawn_layouts.py`` trains a few of them; more with

    PARITY_DRAWS=300 PARITY_SEED=1 ... tests/parity/test_drawn_layouts.py

A draw is a function of ``PARITY_SEED`` and its number alone. One that failed is added to
:data:`FAILED`, and stays there.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Any

from megads.config.rules.checks import problem_of
from megads.errors import ConfigError
from tests.engine.plain import ENGINES
from tests.parity.layouts import Layout

DRAWS = int(os.environ.get("PARITY_DRAWS", "8"))
SEED = os.environ.get("PARITY_SEED", "")
ITERATIONS = 4
STOP = 2
SAMPLES = 8  # a step
END = 7


@dataclass(frozen=True)
class Drawn:
    """A run, the layout of its first half, and that of its second half, which resumes; None: it does not stop."""

    settings: dict[str, str]
    first: Layout
    second: Layout | None

    def __str__(self) -> str:
        more = " ".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{self.first}, then {self.second}: {more}"

    @property
    def ranks(self) -> int:
        return self.first.ranks


def draw(seed: str, number: int, ranks: int) -> Drawn:
    """Return draw ``number`` of ``seed``, on ``ranks`` ranks; what the rules refuse is drawn again."""
    chance = random.Random(f"{seed}/{number}/{ranks}")
    while True:
        settings = _settings(chance)
        first = _layout(chance, settings, ranks)
        second = _layout(chance, settings, ranks) if chance.random() < 0.5 else None
        if all(_is_accepted(layout, settings) for layout in (first, second) if layout is not None):
            # Of their own numbers: which layouts are drawn does not depend on the engines.
            engines = random.Random(f"{seed}/{number}/{ranks}/engines")
            return Drawn(settings, _on_an_engine(first, engines), second and _on_an_engine(second, engines))


def _settings(chance: random.Random) -> dict[str, str]:
    """Return what the run computes, on every layout."""
    kv_heads, group, head_dim = chance.choice((1, 2, 3, 4)), chance.choice((1, 2, 4)), chance.choice((4, 6, 8))
    heads = kv_heads * group
    drops = chance.choice(("none", "none", "hidden", "both"))
    found: dict[str, Any] = {
        "model.family": chance.choice(("gpt", "llama")),
        "model.num_layers": chance.choice((1, 2, 3, 4)),
        "model.num_heads": heads,
        "model.num_kv_heads": kv_heads,
        "model.head_dim": head_dim,
        "model.hidden_size": chance.choice((24, 32, heads * head_dim)),
        "model.ffn_hidden_size": chance.choice((24, 48, 60)),
        "model.seq_length": chance.choice((8, 12, 16)),
        "model.tied_embeddings": chance.choice(("true", "false")),
        "model.hidden_dropout": 0.1 if drops in ("hidden", "both") else 0,
        "model.attention_dropout": 0.1 if drops == "both" else 0,
        "train.micro_batch": chance.choice((1, 2)),
        "train.global_batch": SAMPLES,
        "optim.optimizer": chance.choice(("adamw", "adamw", "adam", "sgd", "adamwschedulefree", "lamb")),
        "optim.clip_grad": chance.choice((0.3, 1.0)),
        "optim.lr_decay_style": chance.choice(("cosine", "linear", "wsd")),
    }
    for name in ("eod_mask_loss", "reset_position_ids", "reset_attention_mask"):
        found[f"data.{name}"] = chance.choice(("true", "false"))
    if chance.random() < 0.25:
        found["train.rampup_batch_size"] = "4,4,8"
    return {key: str(value) for key, value in found.items()}


def _layout(chance: random.Random, settings: dict[str, str], ranks: int) -> Layout:
    degrees = dict.fromkeys(("tp", "pp", "sp", "dp"), 1)
    left = ranks
    while left > 1:
        degrees[chance.choice(list(degrees))] *= 2
        left //= 2
    more: dict[str, str] = {}
    if degrees["tp"] > 1 and chance.random() < 0.5:
        more["parallel.scatter_norms"] = "true"
    granularity = chance.choice(("none", "none", "selective", "full"))
    if granularity != "none":
        more["recompute.granularity"] = granularity
    if granularity == "full":
        more["recompute.method"] = chance.choice(("uniform", "block"))
        more["recompute.num_layers"] = str(chance.choice((1, 2)))
    zero = chance.choice((0, 1, 2, 3))
    if zero == 3:
        more["deepspeed.param_persistence_threshold"] = chance.choice(("0", "1000"))
    return Layout("llama", **degrees, zero=zero, more=more)


def _on_an_engine(layout: Layout, chance: random.Random) -> Layout:
    return layout.on(chance.choice(ENGINES)) if layout.is_native else layout


def _is_accepted(layout: Layout, settings: dict[str, str]) -> bool:
    """Return whether the rules accept the run, and its dropout draws on it what it draws on one rank."""
    if float(settings["model.attention_dropout"]) and layout.tp * layout.sp > 1:
        return False
    scatters = "parallel.scatter_norms" in layout.more
    if float(settings["model.hidden_dropout"]) and (layout.sp > 1 or scatters):
        return False
    try:
        return problem_of(layout.run(**settings), layout.ranks) is None
    except ConfigError:
        return False


FAILED: tuple[Drawn, ...] = ()
"""Draws that once failed, each with a comment that says what was wrong."""
