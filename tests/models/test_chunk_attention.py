"""Which tokens attend to the neighbours of which chunk, in rows of any length, whole and cut over sequence ranks."""

from __future__ import annotations

import pytest
import torch

from megads.families.decoder import spec_of
from megads.families.spec import by_name
from megads.models.chunk_attention import ChunkAttention
from megads.models.layers import Context
from tests.models.noisy import ONE
from tests.models.shapes import RETRO

M = RETRO.retro_chunk_length


def _looked_at(length: int, chunks: int, seq_rank: int | None = None, bias: bool = True) -> list[int]:
    """Return which chunk's neighbours each token's result comes from, -1 for none; they hold their own numbers."""
    module = ChunkAttention(RETRO, by_name(spec_of(RETRO).layer_of(5)), Context(ONE), "5.cross_attention", seq_rank)
    width = RETRO.hidden_size
    with torch.no_grad():
        for query in (module.q.weight, module.q.bias):
            query.normal_()
        module.kv.weight.copy_(torch.cat([torch.eye(width)] * 2))
        module.kv.bias.zero_()
        module.out.weight.copy_(torch.eye(width))
        module.out.bias.fill_(100.0)
    module.out.bias = module.out.bias if bias else None
    numbers = torch.arange(float(chunks)) + 1
    texts = numbers.repeat(2).repeat_interleave(RETRO.retro_num_neighbors)
    encoded = texts[:, None, None].expand(-1, 8, width)
    found = module(torch.randn(2, length, width), encoded)
    assert torch.equal(found[0], found[1])
    assert found.std(dim=-1).max() < 1e-5
    return [round(number) - 1 for number in (found[0, :, 0] - 100.0 * (found[0, :, 0] > 50) * bias).tolist()]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("length", "chunks"), [(12, 3), (11, 2), (13, 3), (14, 3), (12, 1), (4, 1)])
def test_a_token_looks_at_the_last_chunk_that_has_ended(length, chunks, bias):
    wanted = [(token + 1) // M - 1 for token in range(length)]
    assert _looked_at(length, chunks, bias=bias) == [each if each < chunks else -1 for each in wanted]


def test_tokens_of_a_later_rank_begin_with_the_chunk_before():
    whole = [(token + 1) // M - 1 for token in range(16)]
    assert _looked_at(8, 3, 1) == [each - 1 for each in whole[8:]]  # its numbers begin with that chunk
    first = _looked_at(8, 3, 0)
    assert first[: M - 1] == [-1] * (M - 1)
    assert first[M - 1 :] == [each + 1 for each in whole[M - 1 : 8]]


def test_scattered_norms_leave_the_same_tokens_unchanged():
    module = ChunkAttention(RETRO, by_name(spec_of(RETRO).layer_of(5)), Context(ONE), "5.cross_attention", None)
    for rank, part in enumerate(torch.ones(1, 12, 1).chunk(3, dim=1)):
        module.part = (rank, 3)
        kept = module._of_lookers(part, M - 1, 10).flatten().tolist()
        assert kept == [float(M - 1 <= token < 10) for token in range(4 * rank, 4 * rank + 4)]
