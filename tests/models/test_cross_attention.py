"""Attention between decoder and encoder: what it refuses, and flash's arguments. Its numbers: test_t5.py."""

from __future__ import annotations

import pytest
import torch

from megads.errors import ConfigError, DeviceError
from megads.families.spec import by_name
from megads.models import cross_attention
from megads.models.attention import Flash
from megads.models.cross_attention import CrossAttention, RelativeAttention
from megads.models.layers import Context
from megads.parallel.documents import Lengths
from tests.models.noisy import ONE, build
from tests.models.shapes import T5S
from tests.models.test_attention import no_whole, varlen_by_definition


def test_flash_takes_no_relative_positions():
    model = T5S["t5-v1.1"].model_copy(update={"attention": "flash"})
    layer = by_name(build(T5S["t5-v1.1"]).spec.layer)
    with pytest.raises(ConfigError, match="ATTENTION=flash takes no relative positions; use ATTENTION=sdpa"):
        RelativeAttention(model, layer, Context(ONE), None)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_flash_is_given_every_query_and_the_real_keys(kv_heads, monkeypatch):
    monkeypatch.setattr("megads.models.attention._check_device", lambda q: None)
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(3, n, h, 8, generator=generator) for n, h in ((5, 4), (16, kv_heads), (16, kv_heads)))
    lengths = Lengths(torch.tensor([16, 9, 1]), 16)
    mixed = Flash(no_whole, _packed).across(q, k, v, 0.0, lengths)
    mask = lengths.mask
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=mask, enable_gqa=True
    )
    torch.testing.assert_close(mixed, expected.transpose(1, 2))


def _packed(q, k, v, bounds_q, bounds_k, longest_q, longest_k, dropout_p=0.0, causal=False):
    """``flash_attn_varlen_func`` by definition, with as many queries as keys or not."""
    assert not causal
    assert dropout_p == 0.0
    assert bounds_q.dtype == bounds_k.dtype == torch.int32
    assert (longest_q, longest_k) == (5, 16)
    repeat, out = q.shape[1] // k.shape[1], []
    for row in range(len(bounds_q) - 1):
        mine = q[bounds_q[row] : bounds_q[row + 1]]
        keys, values = (x[bounds_k[row] : bounds_k[row + 1]].repeat_interleave(repeat, dim=1) for x in (k, v))
        weights = (torch.einsum("qhd,khd->hqk", mine, keys) / q.shape[-1] ** 0.5).softmax(dim=-1)
        out.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(out)


def test_flash_refuses_a_cpu(monkeypatch):
    monkeypatch.setattr(cross_attention, "load_flash", lambda: Flash(no_whole, varlen_by_definition))
    model = T5S["t5"].model_copy(update={"attention": "flash"})
    attention = CrossAttention(model, by_name(build(T5S["t5"]).spec.layer), Context(ONE), "0.cross_attention")
    with pytest.raises(DeviceError, match="ATTENTION=flash works on nvidia and amd devices"):
        attention.flash.across(*(torch.zeros(1, 4, 2, 8) for _ in range(3)), 0.0, None)
