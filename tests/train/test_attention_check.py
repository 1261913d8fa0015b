"""The log names the kernel of attention; a device that has none but math for long rows ends the set-up."""

from __future__ import annotations

import logging

import pytest
import torch

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.errors import ConfigError
from megads.models import attention_backend
from megads.models.build import build_model
from megads.train.attention_check import report_attention
from tests.engine.plain import settings


@pytest.fixture
def logged(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("megads"), "propagate", True)
    caplog.set_level(logging.INFO, logger="megads")
    return caplog


def test_rank_0_says_which_kernel_it_is(logged):
    run = settings({})
    module = build_model(run, Groups(Grid(), 0))
    report_attention(run, module, torch.device("cpu"), speaks=False)
    assert logged.messages == []
    report_attention(run, module, torch.device("cpu"), speaks=True)
    assert logged.messages == ["sdpa     causal flash_attention (4 heads of 8, 16 tokens)"]


def test_long_rows_by_the_math_kernel_end_the_set_up(monkeypatch):
    run = settings({}, **{"model.seq_length": "2048"})
    module = build_model(run, Groups(Grid(), 0))
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *args, **rest: 0)
    report_attention(run, module, torch.device("cpu"), speaks=False)
    assert attention_backend.LONGEST_MATH < 2048
    with pytest.raises(ConfigError, match=r"takes its math kernel for causal attention .* on meta in fp32"):
        report_attention(run, module, torch.device("meta"), speaks=False)
