"""The peak that torch's tracker counts in a step of the real engine, against the one estimator.

Models are as wide as real ones, so that parameters and activations count, with few layers. What a process takes
before it holds a model (``Memory.program``) and the copy that is being saved are no tensors of a step: they are left
out of both sides.
"""

from __future__ import annotations

import sys

import pytest

from megads.errors import DependencyError
from megads.trace.report import planned
from tests.trace.dry_runs import tracer  # noqa: F401

SHORT = {"NLAYERS": "3", "GRAD_ACC_STEPS": "1"}
PIPED = {"NLAYERS": "8", "PP": "4"}
RUNS = {
    "zero0": ("7B", 3, SHORT | {"ZERO_STAGE": "0"}),
    "zero1-long": ("7B", 0, SHORT | {"SEQ": "8192"}),
    "zero2-micro-2": ("7B", 0, SHORT | {"ZERO_STAGE": "2", "MICRO_BATCH": "2"}),
    "zero3": ("7B", 0, SHORT | {"ZERO_STAGE": "3", "NLAYERS": "4"}),
    "fp32": ("7B", 3, SHORT | {"DTYPE": "fp32"}),
    "tp4": ("7B", 5, SHORT | {"TP": "4", "MICRO_BATCH": "2"}),
    "tp4-scattered": ("7B", 5, SHORT | {"TP": "4", "MICRO_BATCH": "2", "SCATTER_NORMS": "1", "NLAYERS": "4"}),
    "sp4": ("7B", 3, SHORT | {"SP": "4", "SEQ": "16384"}),
    "recomputed": ("7B", 3, SHORT | {"RECOMPUTE": "full", "MICRO_BATCH": "2"}),
    "1f1b-first": ("7B", 0, PIPED | {"GRAD_ACC_STEPS": "4"}),
    "interleaved-middle": ("7B", 3, PIPED | {"GRAD_ACC_STEPS": "4", "VIRTUAL_STAGES": "2"}),
    "1f1b-last": ("7B", 7, PIPED | {"GRAD_ACC_STEPS": "2"}),
    "gpt": ("gpt-345M", 0, SHORT | {"MICRO_BATCH": "4"}),
    "t5": ("t5-220M", 0, SHORT | {"NLAYERS": "2", "DECODER_LAYERS": "2"}),
    "lora": ("7B", 3, SHORT | {"LORA_RANK": "8"}),
    "deepspeed-zero1": ("7B", 3, SHORT | {"ENGINE": "deepspeed"}),
    "deepspeed-zero2": ("7B", 3, SHORT | {"ENGINE": "deepspeed", "ZERO_STAGE": "2"}),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_peak_is_the_estimate_within_a_tenth(name, tracer):  # noqa: F811
    preset, rank, env = RUNS[name]
    trace, found, _, _ = tracer(preset, rank, 8, {"ENGINE": "native"} | env, has_memory=True)
    by, peak = planned(found.estimate), trace.peak
    assert sum(by.values()) == pytest.approx(peak.total, rel=0.1)
    # DeepSpeed's ZeRO 2 lets go of gradients between two steps; in a step they count with the activations.
    kinds = ("weights", "optimizer", *(() if name == "deepspeed-zero2" else ("gradients",)))
    held = [(by[kind], getattr(peak, kind)) for kind in kinds]
    for estimate, counted in held:
        assert estimate == pytest.approx(counted, rel=0.01, abs=2**20)
    assert by["activations"] == pytest.approx(peak.activations + peak.temporary, rel=0.25)


def test_a_torch_without_the_tracker_is_one_line(monkeypatch):
    from megads.trace.memory import Tracked, tracker_class

    monkeypatch.setitem(sys.modules, "torch.distributed._tools.mem_tracker", None)
    with pytest.raises(DependencyError, match=r"has no torch\.distributed\..*\.MemTracker .*use torch"):
        tracker_class()
    with Tracked(is_on=False).running():  # a trace without memory does not look for it
        pass
