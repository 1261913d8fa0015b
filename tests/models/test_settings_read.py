"""No setting of a model is ignored silently: each changes what a family reads, is refused, or is named by a remark."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import pytest

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.rules.checks import problem_of
from megads.config.schema import RunConfig
from megads.config.settings.model import ModelConfig
from megads.config.tree import env_name, fields
from megads.data.samples.masked.options import MaskedOptions
from megads.errors import ConfigError
from megads.families.decoder import spec_of
from megads.models.build import build_model
from megads.plan.remarks import remarks
from tests.parity.layouts import Layout, batches, plain_loss

_READ: set[str] = set()
NOT_IN_A_STEP = {
    "model.family": "decides which of the others are read",
    "model.seq_length": "of the samples",
    "model.max_positions": "rows of learned positions; of the others, what exported files name as their length",
}
SMALL = {"model.num_layers": "2", "train.micro_batch": "8"}


class _Watched(ModelConfig):
    def __getattribute__(self, name: str) -> Any:
        if name in ModelConfig.model_fields:
            _READ.add(f"model.{name}")
        return super().__getattribute__(name)


def _others(name: str) -> Iterator[str]:
    """Yield values of a setting besides its default."""
    field = fields()[name]
    kind, default = field.annotation, field.default
    if kind is bool:
        yield str(not default).lower()
    elif words := typing.get_args(kind):
        yield from (word for word in words if word != default)
    elif kind is str:
        yield "q v"
    elif kind is int:
        yield from (str(number) for number in (8, 3, 16) if number != default)
    else:
        yield str(default / 2 or 0.1)
        yield str(default * 2)


def _accepted(kind: str, change: dict[str, str]) -> RunConfig | None:
    try:
        layers = {"model.num_layers": "6"} if kind == "retro" else {}
        run = Layout(kind).run(**{**SMALL, **layers, **change})
        return run if problem_of(run, 1) is None else None
    except ConfigError:
        return None


def _read_by_a_step(run: RunConfig) -> set[str]:
    """Return the settings of the model that its data, its weights, or a loss ask for."""
    watched = run.model_copy(update={"model": _Watched.model_construct(**run.model.__dict__)})
    _READ.clear()
    spec_of.cache_clear()  # what an equal model was asked for before is not asked again
    MaskedOptions.of(watched)
    model = build_model(watched, Groups(Grid(), 0))
    plain_loss(model, run, batches(run, 0, 0)[0])
    return set(_READ)


@pytest.mark.parametrize("kind", ["llama", "gpt", "bert", "t5", "t5-v1.1", "retro"])
def test_a_setting_is_read_or_named(kind):
    ignored, tried = [], 0
    for name in fields():
        if not name.startswith("model.") or name in NOT_IN_A_STEP:
            continue
        for value in _others(name):
            run = _accepted(kind, {name: value})
            if run is None:
                continue
            tried += 1
            if not any(f"{env_name(name)}=" in line for line in remarks(run, 1)) and name not in _read_by_a_step(run):
                ignored.append((name, value))
            break
    assert not ignored
    assert tried > 20


def test_what_is_read_is_seen():
    read = _read_by_a_step(Layout("t5").run(**SMALL))
    assert {"model.decoder_seq_length", "model.hidden_size"} <= read
    assert "model.rope_theta" not in read
