"""Micro-batches of chats: documents by number, sequence ranks, and packed rows that equal chats alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.data.chat.packing import pack
from megads.data.chat.rows import ChatRow
from megads.engine.chat_batches import ChatSplitter
from megads.engine.task_batches import make_splitter
from megads.models.build import build_model
from tests.parity.layouts import KINDS, VOCAB, Layout

SEQ = 16
ROW = ChatRow(SEQ)
CHAT = {"finetune.task": "chat", "data.reset_attention_mask": "true", "data.reset_position_ids": "true"}


def examples(seed: int, lengths: list[int]) -> list[tuple[Any, Any]]:
    drawn, found = np.random.default_rng(seed), []
    for length in lengths:
        tokens = drawn.integers(1, VOCAB, length)
        labels = np.where(drawn.random(length) < 0.5, drawn.integers(1, VOCAB, length), -1)
        labels[-1] = drawn.integers(1, VOCAB)
        found.append((tokens, labels))
    return found


def _groups(rank: int = 0, size: int = 1) -> Any:
    return SimpleNamespace(seq_rank=rank, seq_size=size, seq=None, tensor=None, data_seq=None, data_seq_size=1)


def rows(*packed: list[tuple[Any, Any]]) -> torch.Tensor:
    return torch.from_numpy(np.stack([ROW.make(each) for each in packed]))


def test_a_chat_makes_its_own_micro_batches():
    assert isinstance(make_splitter(Layout(more=CHAT).run(), _groups(), None), ChatSplitter)


def test_positions_restart_and_labels_without_a_token_do_not_count():
    split = ChatSplitter(Layout(more=CHAT).run(), _groups())
    given = examples(0, [5, 7, 3])
    part = split([rows(given[:2], given[2:])])[0]
    assert part.documents.positions.tolist() == [[*range(5), *range(7), *range(4)], [*range(3), *range(13)]]
    assert part.documents.segments.bounds.tolist() == [0, 5, 12, 16, 19, 32]
    assert int(split.counted_tokens([part])) == sum(int((labels >= 0).sum()) for _, labels in given)


def test_rows_of_one_chat_have_no_documents():
    split = ChatSplitter(Layout(more=CHAT).run(), _groups())
    assert split([rows(examples(0, [5]), [])])[0].documents is None


def test_sequence_ranks_share_rows():
    run, given = Layout(more=CHAT).run(), rows(examples(0, [5, 7]), examples(1, [16]))
    whole = ChatSplitter(run, _groups())([given])[0]
    parts = [ChatSplitter(run, _groups(rank, 2))([given])[0] for rank in (0, 1)]
    for pick in (lambda part: part.tokens, lambda part: part.labels, lambda part: part.documents.positions):
        assert torch.equal(torch.cat([pick(part) for part in parts], dim=1), pick(whole))
    assert all(torch.equal(part.documents.segments.source, whole.documents.segments.source) for part in parts)


def test_rows_of_another_length_are_an_error():
    with pytest.raises(ValueError, match="rows of 45 numbers; those of SEQ=16 have 48"):
        ChatSplitter(Layout(more=CHAT).run(), _groups())([rows([])[:, 3:]])


def _whole_loss(model: Any, split: ChatSplitter, batches: list[torch.Tensor]) -> torch.Tensor:
    parts = split(batches)
    weight = len(parts) / split.counted_tokens(parts).double()  # that of an engine is float32
    torch.testing.assert_close(split.token_weight(parts), weight.float())
    return sum(model(part.tokens, part.labels, weight, documents=part.documents) for part in parts) / len(parts)


@pytest.mark.parametrize("kind", ["gpt", "llama", "qwen3", "gqa"])
@pytest.mark.parametrize("seed", [0, 1])
def test_packed_rows_give_the_loss_and_the_gradients_of_chats_alone_in_float64(kind, seed):
    """Alone is without rows, padding and documents: torch's cross entropy of each chat's own forward pass."""
    assert kind in KINDS
    run = Layout(kind, more=CHAT).run(**{"model.num_layers": "2"})
    model = build_model(run, Groups(Grid(), 0)).double()
    drawn = np.random.default_rng(seed)
    lengths = drawn.integers(1, 9, 9).tolist()
    given = examples(seed, lengths)
    alone = torch.zeros((), dtype=torch.float64)
    for tokens, labels in given:
        logits = model(torch.from_numpy(tokens)[None])[0, :, :VOCAB]
        alone = alone + torch.nn.functional.cross_entropy(
            logits, torch.from_numpy(labels), ignore_index=-1, reduction="sum"
        )
    alone = alone / sum(int((labels >= 0).sum()) for _, labels in given)
    alone.backward()
    wanted = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    split = ChatSplitter(run, Groups(Grid(), 0))
    packed = [[given[i] for i in row] for row in pack(lengths, SEQ, drawn)]
    packed += [[]] * (len(packed) % 2)
    unpacked = [[each] for each in given] + [[]]
    for ways in (packed, unpacked):
        model.zero_grad()
        loss = _whole_loss(model, split, list(rows(*ways).split(2)))
        loss.backward()
        torch.testing.assert_close(loss, alone, rtol=1e-10, atol=1e-10)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-10, atol=1e-10)
