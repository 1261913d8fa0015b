"""A backward pass from a given gradient, without what torch imports for it."""

from __future__ import annotations

import pytest


def test_gradients_are_torchs():
    import torch

    from megads.engine.native.backward import run_backward

    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(3, 4, generator=generator, requires_grad=True) for _ in range(2))
    upstream = torch.randn(3, 4, generator=generator)
    y = (x * weight).tanh()
    expected = torch.autograd.grad(y, (x, weight), upstream, retain_graph=True)
    shape = y.shape
    y.data = y.new_empty(1).expand(shape)  # as a stage does with what it has sent
    run_backward(y, upstream)
    for found, wanted in zip((x.grad, weight.grad), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_a_gradient_of_another_shape_is_no_gradient():
    import torch

    from megads.engine.native.backward import run_backward

    with pytest.raises(AssertionError):
        run_backward(torch.ones(2, requires_grad=True) * 2, torch.ones(3))
