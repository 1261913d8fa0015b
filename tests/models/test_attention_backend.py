"""Torch is asked about the very calls that a model makes, and math attention over long rows is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from megads.config.schema import RunConfig
from megads.errors import ConfigError
from megads.models.attention_backend import MATH, UNKNOWN, Call, attention_forms, check_backends, chosen_by_torch
from tests.models import shapes
from tests.parity.layouts import Layout, batches, engine_of, rate
from tests.ranks import run_ranks

CPU, DEVICE = torch.device("cpu"), torch.device("meta")
SIZES = {"model.num_layers": "2", "train.global_batch": "4"}


def _signature(call: Call) -> tuple[Any, ...]:
    """Return what torch decides by."""
    parts = [(tuple(x.shape), x.dtype, x.stride(-1)) for x in (call.query, call.key, call.value)]
    mask = None if call.attn_mask is None else (tuple(call.attn_mask.shape), call.attn_mask.dtype)
    return (*parts, mask, call.dropout_p, call.is_causal, call.scale, call.enable_gqa)


class Seen(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: set[tuple[Any, ...]] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            self.calls.add(_signature(Call(*args, **kwargs)))
        return func(*args, **(kwargs or {}))


def _is_asked_as_computed(layout: Layout) -> None:
    layers = {"model.num_layers": "6"} if layout.kind.startswith("retro") else {}
    engine, run, groups = engine_of(layout, **{**SIZES, **layers})
    asked = {_signature(form.call) for form in attention_forms(engine.module, run, CPU)}
    assert engine.module.training
    with Seen() as seen:
        engine.train_step(batches(run, 0, groups.data_rank), rate(0))
        engine.eval_losses(batches(run, 0, groups.data_rank))
    assert asked == seen.calls


@pytest.mark.dist
@pytest.mark.parametrize(
    "layout",
    [
        Layout("gqa"),
        Layout("gpt-dropout"),
        Layout("bert-dropout", tp=2),
        Layout("t5-dropout", sp=2),
        Layout("t5-v1.1"),
        Layout("retro-dropout", tp=2),
        Layout("retro", sp=2),
        Layout("t5-v1.1", pp=2),
        Layout("uneven", sp=2),
        Layout("gqa", sp=2, more={"recompute.granularity": "selective"}),
    ],
    ids=str,
)
def test_calls_are_asked_about_as_they_are_computed(layout):
    run_ranks(layout.ranks, _is_asked_as_computed, layout)


def _forms(kind: Any, choose: Any = chosen_by_torch, **changes: Any) -> tuple[list[Any], RunConfig]:
    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.models.build import build_model

    run = shapes.make_run(kind)
    run = run.model_copy(update=changes)
    return attention_forms(build_model(run, Groups(Grid(), 0)), run, CPU, choose), run


def test_every_form_has_its_name():
    assert [form.name for form in _forms(shapes.LLAMA)[0]] == ["causal"]
    assert [form.name for form in _forms(shapes.BERT)[0]] == ["encoder"]
    assert {form.name for form in _forms(shapes.T5)[0]} == {"encoder", "causal", "cross"}
    assert {form.name for form in _forms(shapes.T5_V11)[0]} == {"encoder relative", "causal relative", "cross"}
    run = shapes.make_run(shapes.LLAMA)
    packed = run.data.model_copy(update={"reset_attention_mask": True})
    forms, _ = _forms(shapes.LLAMA, data=packed)
    assert [(form.name, form.call.key.shape[2]) for form in forms] == [
        ("causal", 12),
        ("documents", 9),
        ("documents", 3),
    ]


def test_the_kernels_of_the_cpu_are_torchs():
    (form,), _ = _forms(shapes.LLAMA_GQA)
    assert str(form) == "causal flash_attention (8 heads (4 kv) of 4, 12 tokens)"
    (dropped, plain), _ = _forms(shapes.LLAMA.model_copy(update={"attention_dropout": 0.1}))
    assert (dropped.backend, plain.backend) == (MATH, "flash_attention")
    assert str(dropped.call) == "8 heads of 4, 12 tokens, dropout 0.1"


def test_a_torch_that_cannot_say_is_no_error(monkeypatch):
    (form,), run = _forms(shapes.LLAMA)

    def refuse(*args: Any, **rest: Any) -> int:
        raise NotImplementedError("no such question on this device")

    monkeypatch.setattr(torch, "_fused_sdp_choice", refuse)
    assert chosen_by_torch(form.call) == UNKNOWN
    monkeypatch.delattr(torch, "_fused_sdp_choice")
    assert chosen_by_torch(form.call) == UNKNOWN
    check_backends([replace(form, backend=UNKNOWN)], run, DEVICE)


def _long(run: RunConfig, **train: Any) -> tuple[list[Any], RunConfig]:
    """Return math attention over 2,048 tokens of 4 samples, and its run."""
    model = shapes.LLAMA_GQA.model_copy(update={"attention_dropout": 0.1, "head_dim": 6})
    forms, run = _forms(model, lambda call: MATH)
    q, k, v = torch.empty(4, 16, 2048, 6).split((8, 4, 4), dim=1)
    call = replace(forms[0].call, query=q, key=k, value=v)
    return [replace(forms[0], call=call)], run.model_copy(update={"train": run.train.model_copy(update=train)})


def test_math_over_long_rows_is_refused_with_what_would_work():
    forms, run = _long(shapes.make_run(shapes.LLAMA))

    def choose(call: Call) -> str:
        return "flash_attention" if call.dropout_p == 0 or call.query.shape[-1] == 8 else MATH

    with pytest.raises(ConfigError) as caught:
        check_backends(forms, run, DEVICE, choose)
    assert str(caught.value) == (
        "scaled_dot_product_attention takes its math kernel for causal attention (8 heads (4 kv) of 6, 2048 tokens, "
        f"dropout 0.1) on meta in {run.train.dtype}: 0.5 GiB of scores in every layer; ATTENTION_DROPOUT=0 or "
        "HEAD_DIM=8 would not; SDPA_MATH=1 allows it"
    )
    with pytest.raises(ConfigError, match="; a newer torch may not; SDPA_MATH=1"):
        check_backends(forms, run, DEVICE, lambda call: MATH)
    with pytest.raises(ConfigError, match="layer; NUM_KV_HEAD=8 would not; SDPA_MATH=1"):
        check_backends(forms, run, DEVICE, lambda call: MATH if call.enable_gqa else "efficient_attention")
    with pytest.raises(ConfigError, match="layer; DTYPE=bf16 would not; SDPA_MATH=1"):
        check_backends(
            forms, run, DEVICE, lambda call: "flash_attention" if call.query.dtype == torch.bfloat16 else MATH
        )


def test_math_is_taken_where_it_is_allowed_short_or_on_a_cpu():
    forms, run = _long(shapes.make_run(shapes.LLAMA))
    check_backends(forms, run, CPU)
    short = replace(forms[0].call, key=forms[0].call.key[:, :, :1024])
    check_backends([replace(forms[0], call=short)], run, DEVICE)
    check_backends([replace(forms[0], backend="efficient_attention")], run, DEVICE)
    check_backends(*_long(run, sdpa_math=True), DEVICE)
