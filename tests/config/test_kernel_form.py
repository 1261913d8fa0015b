"""Which form layers are computed in, and what keeps a run from being compiled."""

from __future__ import annotations

import pytest

from megads.config.kernel_form import Form, form_of
from tests.engine.plain import settings


def of(device: str = "cuda", **changes: str) -> Form:
    return form_of(settings({}, **changes), 1, device)


def test_a_cpu_or_a_device_without_a_compiler_compiles_where_it_is_asked_to():
    assert of("cpu") == of("gpu") == Form("eager")
    assert of("cpu", **{"engine.kernels": "compiled"}) == Form("compiled")


def test_an_accelerator_compiles_unless_it_is_not_to():
    assert of("cuda") == of("xpu") == Form("compiled")
    assert of("cuda", **{"engine.kernels": "eager"}) == Form("eager")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model.attention_dropout": "0.1"}, "dropout"),
        ({"model.hidden_dropout": "0.1"}, "dropout"),
        ({"data.reset_attention_mask": "1"}, "RESET_ATTENTION_MASK"),
        ({"recompute.mlp_tiles": "2"}, "MLP_TILES"),
        ({"model.family": "retro", "model.hidden_dropout": "0", "model.attention_dropout": "0"}, "neighbours"),
        ({"recompute.granularity": "full", "recompute.engine": "deepspeed"}, "RECOMPUTE_WITH"),
        ({"parallel.zero_stage": "3", "engine.kind": "deepspeed"}, "ENGINE=native"),
    ],
)
def test_what_does_not_go_with_compiled_layers_is_named(changes, named):
    for kernels in ("auto", "compiled"):
        form = of("cuda", **{"engine.kernels": kernels}, **changes)
        assert form.kind == "eager"
        assert named in form.reason
    assert of("cuda", **{"engine.kernels": "eager"}, **changes).reason == ""


def test_whole_layers_are_gathered_by_the_native_engine():
    assert of(**{"parallel.zero_stage": "3", "engine.kind": "native"}) == Form("compiled")


def test_ligers_kernels_go_with_everything():
    assert of("cuda", **{"engine.kernels": "liger", "model.hidden_dropout": "0.1"}) == Form("liger")
