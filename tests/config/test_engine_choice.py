"""Tests of megads.config.engine_choice: which engine runs a run, and why; no setting is silently ignored."""

from __future__ import annotations

from typing import get_args

import pytest

from megads.config import engine_choice
from megads.config.engine_choice import ABILITIES, choose, missing, needed, table
from megads.config.rules.advice import put
from megads.config.schema import RunConfig
from megads.config.tree import fields, value_of

BOTH_READ = {
    *("recompute.granularity", "recompute.method", "recompute.num_layers"),
    *("recompute.loss_chunk", "recompute.mlp_tiles", "recompute.long_context", "recompute.cpu_checkpointing"),
    *(
        "deepspeed.torch_compiler",
        "deepspeed.offload_pin_memory",
        "deepspeed.communication_data_type",
        "deepspeed.torch_compiler",
        "deepspeed.hpz_partition_size",
        "deepspeed.reduce_bucket_size",
    ),
}
"""Settings of recomputation and of DeepSpeed that the native engine follows too."""


def of(**change) -> RunConfig:
    return put(RunConfig(), {name.replace("__", "."): value for name, value in change.items()})


@pytest.mark.parametrize("kind", ["native", "deepspeed"])
def test_an_engine_that_was_named_is_taken_without_a_reason(kind):
    assert str(choose(of(engine__kind=kind, deepspeed__config_overrides="{}"), 1)) == kind


def test_auto_takes_deepspeed_until_native_is_the_default(monkeypatch):
    monkeypatch.setattr(engine_choice, "AUTO_TAKES_NATIVE", False)
    assert str(choose(RunConfig(), 1)) == "deepspeed, since it is the default"
    monkeypatch.setattr(engine_choice, "AUTO_TAKES_NATIVE", True)
    assert str(choose(RunConfig(), 1)) == "native"


def _others(name):
    """Return values of a setting besides its default."""
    field = fields()[name]
    if choices := get_args(field.annotation):
        return [each for each in choices if each != field.default]
    return [{bool: lambda: not field.default, int: lambda: field.default + 1, str: lambda: "x"}[type(field.default)]()]


@pytest.mark.parametrize("name", [each for each in fields() if each.startswith(("deepspeed.", "recompute."))])
def test_no_setting_of_deepspeed_is_silently_ignored(name, monkeypatch):
    monkeypatch.setattr(engine_choice, "AUTO_TAKES_NATIVE", True)
    for value in _others(name):
        run = put(RunConfig(), {name: value})
        is_read = name in BOTH_READ or (name, value) == ("deepspeed.offload_optimizer", "cpu")
        assert [names for _, names in missing(run, "native")] == ([] if is_read else [[name]])
        choice = choose(run, 4)
        assert choice.kind == ("native" if is_read else "deepspeed")
        assert is_read or engine_choice.shown(run, name) in choice.reason


def test_reason_names_every_setting_and_no_json(monkeypatch):
    monkeypatch.setattr(engine_choice, "AUTO_TAKES_NATIVE", True)
    run = of(deepspeed__config_overrides='{"aio": {}}', deepspeed__comms_logger=True, deepspeed__offload_params="cpu")
    expected = "DS_CONFIG_OVERRIDES, OFFLOAD_PARAMS=cpu and COMMS_LOGGER=1"
    assert str(choose(run, 1)) == f"deepspeed, since the native engine does not do {expected}"
    assert needed(run, "native") == ""


def test_optimizers_of_deepspeed_need_it():
    assert needed(of(optim__optimizer="ds.adamw", deepspeed__offload_optimizer="cpu"), "deepspeed") == "OPT=ds.adamw"


def test_every_row_has_settings_that_exist_and_an_engine():
    run = RunConfig()
    for row in ABILITIES:
        assert row.native or row.deepspeed
        assert all(value_of(run, name) is not None for name in row.names)
        assert row.asking(run) == []


def test_table_has_a_line_for_each():
    lines = table().splitlines()
    assert len(lines) == 2 + len(ABILITIES)
    assert "| weights off the device | `OFFLOAD_PARAMS` | no | yes |" in lines


def test_zero_3_may_gather_nothing_ahead_with_both():
    run = of(deepspeed__prefetch_bucket_size=0)
    assert list(missing(run, "native")) == list(missing(run, "deepspeed")) == []
