"""Operations without a deterministic algorithm fail, in a run that must repeat bit for bit."""

from __future__ import annotations

import pytest
import torch

from megads.device.determinism import make_deterministic


@pytest.fixture
def _as_before():
    cudnn, mode = torch.backends.cudnn, torch.get_deterministic_debug_mode()
    flags = cudnn.deterministic, cudnn.benchmark
    yield
    torch.set_deterministic_debug_mode(mode)
    cudnn.deterministic, cudnn.benchmark = flags


@pytest.mark.usefixtures("_as_before")
def test_what_does_not_repeat_is_an_error():
    source, index = torch.ones(4), torch.tensor([0, 0, 1, 1])
    assert torch.zeros(2).put_(index, source).sum() == 2
    make_deterministic()
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        torch.zeros(2).put_(index, source)
    assert torch.zeros(2).index_add_(0, index, source).tolist() == [2, 2]
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
