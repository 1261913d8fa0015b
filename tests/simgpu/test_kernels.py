"""Kernels and bytes of one more layer, forward and backward: golden numbers, so that a kernel too many is noticed.

The device is torch's PrivateUse1, which takes RMSNorm, attention and SiLU's gradient apart: an accelerator has fewer.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.plain import settings
from tests.ranks import groups_of
from tests.simgpu.counting import Counts, counting
from tests.simgpu.device import DEVICE, run_on_device

GPT = {"model.family": "gpt", "model.hidden_dropout": "0", "model.attention_dropout": "0"}
LAYERS = {
    # kernels, KiB of their operands and results
    "llama-bf16": ({"train.dtype": "bf16"}, 90, 679),
    "llama-fp32": ({}, 80, 1009),
    "gpt-bf16": ({**GPT, "train.dtype": "bf16"}, 41, 383),
    "llama-bf16-recomputed": ({"train.dtype": "bf16", "recompute.granularity": "full"}, 116, 854),
}


def _passes(changes: dict[str, str], layers: int) -> Counts:
    import torch

    from megads.engine.build import DTYPES
    from megads.engine.deepspeed.recompute import make_recompute
    from megads.models.build import build_model
    from megads.parallel.tensor import placed

    run, device = settings({}, **{**changes, "model.num_layers": str(layers)}), torch.device(DEVICE)
    with placed(device, DTYPES[run.train.dtype]):
        model: Any = build_model(run, groups_of(), make_recompute(run, groups_of(), device))
    tokens = torch.zeros(2, run.model.seq_length, dtype=torch.int64, device=device)
    for _ in range(2):  # the first pass makes tables
        with counting() as found:
            model(tokens, tokens).backward()
    return found


def _has(changes: dict[str, str], kernels: int, kib: int) -> None:
    few, more = (_passes(changes, layers) for layers in (2, 3))
    told = {name: count - few.names.get(name, 0) for name, count in more.names.items()}
    told = {name: count for name, count in told.items() if count}
    one = more.kernels - few.kernels, (more.kernel_bytes - few.kernel_bytes) // 1024
    assert one == (kernels, kib), told
    assert not more.waits


@pytest.mark.parametrize("name", LAYERS)
def test_one_more_layer(name):
    run_on_device(1, _has, *LAYERS[name])
