"""Values that ranks exchange: JSON, and nothing in the package that makes pickles of them."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from megads.checkpoint.format.manifest import File, Run
from megads.comm.messages import all_gather_values, broadcast_value, decode, encode, first_text, gather_values
from megads.data.samples.masked.masking import WordPieces
from megads.errors import CheckpointError
from tests.ranks import run_ranks

PACKAGE = Path(__file__).parents[2] / "megads"


def check_values() -> None:
    rank = dist.get_rank()
    mine = {"rank": rank, "text": "\u00e9" * (rank * 1000), "more": [1.5, None, True, float("inf")]}
    every = [{**mine, "rank": each, "text": "\u00e9" * (each * 1000)} for each in range(3)]
    assert broadcast_value(mine if rank == 1 else None, src=1) == every[1]
    assert all_gather_values(mine) == every
    assert gather_values(mine) == (every if rank == 0 else [])
    assert broadcast_value("") == ""
    assert gather_values(None, dst=2) == ([None] * 3 if rank == 2 else [])


@pytest.mark.dist
def test_values_of_all_lengths_arrive():
    run_ranks(3, check_values)


def test_ranks_tell_each_other_no_pickles():
    makes = re.compile(r"\b(?:broadcast|gather|scatter|send|recv)_object|_object_list\b|pickle\.loads?\b")
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text().splitlines()
        if makes.search(line)
    ]
    assert found == []


@dataclass(frozen=True)
class Stranger:
    """A record that is not of megads."""

    text: str = ""


def test_what_arrives_is_what_was_sent():
    run = Run(1, 0, 5, range(0, 8, 2))
    found = {
        "file": File(7, 2**32 - 1, 0, "0-0-1"),
        "runs": (run, [run]),
        3: (b"\xff\0", Path("/a b"), None, True, 0.1, -0.0),
        ("a", 1): CheckpointError("why"),
        "number": np.int64(2**60),
    }
    back = decode(encode(found))
    assert repr(back) == repr({**found, "number": 2**60})
    assert back["runs"][1][0] == run
    assert isinstance(decode(encode(float("inf"))), float)


@pytest.mark.parametrize(
    "text",
    [
        '{"os:system": "true"}',
        '{"subprocess:Popen": {"args": "true"}}',
        '{"megads.comm.messages:Path": {}}',
        '{"megads.comm.messages:dist": {}}',
        '{"builtins:eval": "1"}',
        '{"a": 1, "b": 2}',
        "[",
    ],
)
def test_nothing_but_records_of_the_package_is_made(text):
    with pytest.raises(ValueError):  # noqa: PT011 - each says something else
        decode(text)


def test_what_is_no_value_is_not_sent():
    with pytest.raises(TypeError, match="lock is not a message type"):
        encode([threading.Lock()])
    with pytest.raises(ValueError, match="is not a message record"):
        decode(encode(Stranger()))


@pytest.mark.parametrize(
    "array", [np.arange(5), np.eye(2, dtype=np.float32), np.array([True, False]), np.zeros((0, 3))]
)
def test_arrays_of_numbers_arrive_as_they_are(array):
    found = decode(encode((array, 1)))[0]
    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_arrays_of_objects_are_not_made():
    with pytest.raises(ValueError, match=r"itemsize cannot be zero in type|cannot create an OBJECT array from memory"):
        decode('{"array":["|O",[1],{"bytes":"AAAAAAAAAAA="}]}')


def test_the_pieces_of_a_vocabulary_arrive():
    """Rank 0 loads the tokenizer of BERT or T5, and all ranks draw samples."""
    pieces = WordPieces(np.arange(4), np.array([False, True, False, True]), 0, 1, 2, 3, sentinels=(7, 8))
    found = decode(encode(pieces))
    assert isinstance(found, WordPieces)
    assert (found.cls, found.pad, found.sentinels) == (0, 3, (7, 8))
    assert found.ids.tolist() == [0, 1, 2, 3]
    assert found.continues.tolist() == [False, True, False, True]


def _first_text() -> None:
    rank = dist.get_rank()
    assert first_text("") == ""
    assert first_text(f"rank {rank} failed" if rank in (1, 2) else "") == "rank 1 failed"


@pytest.mark.dist
def test_the_first_text_of_any_rank_reaches_all():
    run_ranks(4, _first_text)
    assert first_text("alone") == "alone"
