"""The same order for any workers, memory and packing; another one for another seed; no place is preferred."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from megads.data.corpus.frame.step import Joined, Lines
from megads.data.corpus.shuffle import Shuffle, random_bits
from megads.data.preprocess.input.files import Source
from tests.data.preprocess.conftest import alive, kill, until

LINES = [{"text": "x" * (number % 50), "n": number} for number in range(600)]


def test_order_does_not_depend_on_how_it_is_made(megads):
    lines = megads.write("a", LINES[:400]) + megads.write("b", LINES[400:])
    megads.made("shuffle", "a", "b", "one", "--seed", 5, "--workers", 1)
    found = megads.lines("one")
    assert sorted(found) == sorted(lines)
    assert found != lines
    megads.made("shuffle", "a", "b", "two", "--seed", 5, "--workers", 3, "--block-bytes", 700)
    assert megads.lines("two") == found
    data = (megads.folder / "a").read_bytes()
    (megads.folder / "a").unlink()
    (megads.folder / "a").write_bytes(gzip.compress(data))
    megads.made("shuffle", "a", "b", "three", "--seed", 5)
    assert megads.lines("three") == found
    megads.made("shuffle", "a", "b", "four", "--seed", 6)
    assert sorted(megads.lines("four")) == sorted(found)
    assert megads.lines("four") != found


@pytest.mark.parametrize("memory", [300, 3000, 10**6])
def test_memory_does_not_change_the_order(megads, tmp_path, memory):
    """Files that are larger than the memory are split again."""
    megads.write("a", LINES)
    data = (megads.folder / "a").read_bytes()
    step = Shuffle(1, [Source("a", "plain", 1, 0)], memory)
    assert step.num_streams == 3  # one file at first
    outputs = [b"".join(pieces) for pieces in step.block(Lines(data, 0, 0)).outputs]
    streams = tuple(tmp_path / str(number) for number in range(3))
    for path, output in zip(streams, outputs, strict=True):
        path.write_bytes(output)
    finished = step.finish(Joined(streams, tmp_path, {}, lambda: None, print))
    expected = np.argsort(random_bits(1, 0, begins(megads.folder / "a")), kind="stable")
    found = [json.loads(line)["n"] for line in finished.output.read_bytes().splitlines()]
    assert found == expected.tolist()


def begins(path) -> np.ndarray:
    sizes = [len(line) for line in path.read_bytes().splitlines(keepends=True)]
    return np.cumsum([0, *sizes[:-1]]).astype(np.uint64)


def test_byte_order_mark_and_blocks(megads):
    (megads.folder / "a").write_bytes(b"\xef\xbb\xbf" + b"".join(b'{"n": %d}\n' % number for number in range(50)))
    megads.made("shuffle", "a", "one", "--workers", 1)
    megads.made("shuffle", "a", "two", "--workers", 2, "--block-bytes", 40)
    assert megads.lines("one") == megads.lines("two")
    assert len(megads.lines("one")) == 50


def test_bits_are_uniform():
    """Ten thousand lines of 100 bytes: mean, halves of each bit, neighbours (six standard deviations)."""
    bits = random_bits(3, 0, np.arange(10_000, dtype=np.uint64) * np.uint64(100))
    share = bits.astype(np.float64) / 2.0**64
    assert abs(share.mean() - 0.5) < 6 * np.sqrt(1 / 12 / 10_000)
    ones = [(bits >> np.uint64(bit) & np.uint64(1)).mean() for bit in range(64)]
    assert max(abs(one - 0.5) for one in ones) < 6 * 0.5 / 100
    assert abs(np.corrcoef(share[1:], share[:-1])[0, 1]) < 6 / 100
    assert len(set(bits.tolist())) == 10_000
    assert random_bits(3, 1, np.zeros(1, np.uint64)) != random_bits(3, 0, np.zeros(1, np.uint64))
    assert random_bits(2, 1, np.zeros(1, np.uint64)) != random_bits(1, 2, np.zeros(1, np.uint64))


def test_number_of_files():
    def count(*sources: Source, memory: int = 100) -> int:
        return Shuffle(0, sources, memory).num_streams - 2

    assert count(Source("a", "plain", 100, 0)) == 1
    assert count(Source("a", "plain", 101, 0)) == 2
    assert count(Source("a", "gzip", 100, 0)) == 4
    assert count(Source("a", "plain", 10**9, 0)) == 256
    assert count(Source("-", "pipe", 0, 0)) == 64
    assert count() == 1


def test_killed_while_it_sorts(megads):
    """The workers are done; the leader is killed, and the next call sorts again."""
    lines = megads.write("a", LINES * 20)
    words = ["shuffle", "a", "out", "--commit-seconds", 0]
    sorting = megads.folder / ".out.corpus" / "finish" / "shuffled"
    for _ in range(5):
        pid = megads.start(*words)
        until(lambda pid=pid: sorting.exists() or not alive(pid))
        kill(pid)
        if megads.wait(pid).code == 0:
            break
    megads(*words)
    assert sorted(megads.lines("out")) == sorted(lines)
    megads.made("shuffle", "a", "again")
    assert megads.lines("again") == megads.lines("out")
    assert [name for name in megads.hidden() if not name.endswith(".lock")] == []
