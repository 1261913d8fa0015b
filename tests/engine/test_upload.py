"""A micro-batch that is sent in one piece is the same micro-batch."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import torch

from megads.engine import upload
from megads.engine.micro_batches import MicroBatch
from megads.parallel.documents import Documents, Lengths, find_documents
from tests.models.noisy import ONE
from tests.parallel.test_documents import END, rows

CPU, META = torch.device("cpu"), torch.device("meta")


def parts() -> list[MicroBatch]:
    tokens = rows(3, 17, 0.3)
    found = find_documents(tokens[:, :-1], END, ONE, reset_positions=True, reset_attention=True)
    lengths = Documents(lengths=Lengths(torch.tensor([3, 4]), 5), types=torch.tensor([[0, 1], [1, 1]]))
    pairs = torch.tensor([1, -1])
    return [
        MicroBatch(tokens[:, :-1], tokens[:, 1:], found),
        MicroBatch(tokens[:2, :5], tokens[:2, 1:6], lengths, pairs=pairs),
        MicroBatch(tokens[:, :-1], tokens[:, 1:], None),
    ]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if is_dataclass(one):
        return all(same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one))
    return bool(one == other)


def test_on_a_cpu_nothing_is_copied():
    there = parts()
    assert all(new is old for new, old in zip(upload.to_device(there, CPU), there, strict=True))


def test_what_arrives_is_what_was_sent(monkeypatch):
    sent: list[torch.Tensor] = []

    def keep(host: torch.Tensor, device: torch.device) -> torch.Tensor:
        sent.append(host)
        return host

    monkeypatch.setattr(upload, "upload", keep)
    there = parts()
    arrived = upload.to_device(there, META)
    assert len(sent) == 3
    assert all(same(new, old) for new, old in zip(arrived, there, strict=True))
    assert arrived[0].documents.segments.bounds.dtype == torch.int32
