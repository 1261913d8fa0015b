"""Intel's oneCCL and its extension of torch on CPUs, where they are installed (docs/gpu.md says how)."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.device

CCL = pytest.mark.skipif(
    find_spec("oneccl_bindings_for_pytorch") is None,
    reason="no stack of an accelerator: oneccl_bindings_for_pytorch is not installed",
)
IPEX = pytest.mark.skipif(
    find_spec("intel_extension_for_pytorch") is None,
    reason="no stack of an accelerator: intel_extension_for_pytorch is not installed",
)
SHORT = {"TRAIN_ITERS": "3", "EVAL_INTERVAL": "0", "EVAL_AT_START": "0", "GLOBAL_BATCH": "8", "MICRO_BATCH": "2"}


def _losses(megads, name, **settings):
    done = megads.train(name, **SHORT, **settings)
    assert done.returncode == 0, done.stderr
    return megads.losses(name)


@CCL
@pytest.mark.parametrize("layout", [{"NGPU_PER_HOST": "2"}, {"NGPU_PER_HOST": "2", "TP": "2"}, {"NGPU_PER_HOST": "4"}])
def test_losses_under_ccl_are_those_under_gloo(megads, layout):
    under = {name: _losses(megads, name, MEGADS_BACKEND=name, **layout) for name in ("gloo", "ccl")}
    assert under["ccl"] == pytest.approx(under["gloo"], rel=1e-6)


@IPEX
def test_both_forms_of_lamb_agree(megads):
    plain, fused = (_losses(megads, name, OPT=name) for name in ("ipex.lamb", "ipex.fusedlamb"))
    assert fused == pytest.approx(plain, rel=1e-5)
