"""A worker does not believe its library."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from megads.data.preprocess.plan import Job
from megads.data.preprocess.workers.pool import Block, Write
from megads.data.preprocess.workers.worker import Problem, _Worker, pack
from megads.data.tokenizers.base import Encoded, TokenizerSpec

LINES = b'{"text": "1 2"}\n\n{"text": "3"}\n{"text": ""}\n{"text": "4 5"}\n'


class Wrong:
    """A library that fails, or drops the last id, where a text holds a 5."""

    name = "wrong 1.0"

    def __init__(self, fails: bool):
        self.fails = fails

    def encode_batch(self, texts: Sequence[str]) -> Encoded:
        found = [[int(word) for word in text.split() if word != "5"] for text in texts]
        if self.fails and any("5" in text for text in texts):
            raise ValueError("no fives")
        offsets = np.cumsum([0, *map(len, found)])
        return np.array([token for ids in found for token in ids], "<u4"), offsets


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """What a worker sets for its libraries is for its own process."""
    yield
    for name in ("RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        if name in os.environ:
            os.putenv(name, os.environ[name])
        else:
            os.unsetenv(name)


def worker(*, verify: bool, fails: bool) -> _Worker:
    made = _Worker(Job((), "out", TokenizerSpec("NullTokenizer", vocab_size=10), append_eod=True, verify=verify), None)
    made._encoder = Wrong(fails)
    made._dtype = np.dtype("<u2")
    return made


def test_verify_names_the_line():
    with pytest.raises(Problem) as caught:
        worker(verify=True, fails=False).encode(Block(0, 0, "a", 0, len(LINES), 0, LINES))
    assert caught.value.line == 4
    assert str(caught.value.error).startswith(
        "wrong 1.0 gives different ids from the tokenizer itself for '4 5'...; use"
    )


def test_original_takes_over_where_the_library_fails(tmp_path):
    made = worker(verify=False, fails=True)
    made._files = [os.open(tmp_path / "bin", os.O_CREAT | os.O_WRONLY)]
    answer = made.encode(Block(0, 0, "a", 0, len(LINES), 0, LINES))
    assert answer.note == "wrong 1.0 failed (ValueError: no fives); the original library encodes such texts"
    assert answer.outputs[0].sequences.tolist() == [1, 1, 0, 1]
    made.write(Write(0, (4,)))
    os.close(made._files[0])
    assert np.fromfile(tmp_path / "bin", "<u2").tolist() == [0, 0, 1, 2, 9, 3, 9, 4, 5, 9]


def test_small_batches_give_the_same():
    made = worker(verify=True, fails=False)
    lines = LINES.replace(b" 5", b"")
    whole = made.encode(Block(0, 0, "a", 0, len(lines), 0, lines))
    made._job = Job((), "out", made._job.tokenizer, how=type(made._job.how)(chunk_size=1))
    single = made.encode(Block(1, 0, "a", 0, len(lines), 0, lines))
    assert made._waiting[0][0].tolist() == made._waiting[1][0].tolist() == [1, 2, 9, 3, 9, 4, 9]
    assert whole.outputs[0].lengths.tolist() == single.outputs[0].lengths.tolist()


@pytest.mark.parametrize("mean", [2, 2000])
@pytest.mark.parametrize("eod", [None, 9])
def test_packing_against_a_loop(mean, eod):
    """Short documents and long ones take two ways."""
    rng = random.Random(mean)
    for _ in range(20):
        documents = [
            [[rng.randrange(9) for _ in range(rng.choice([0, 1, mean]))] for _ in range(rng.choice([0, 1, 1, 3]))]
            for _ in range(rng.randrange(8))
        ]
        flat = [token for document in documents for text in document for token in text]
        offsets = np.cumsum([0, *(len(text) for document in documents for text in document)])
        counts = [len(document) for document in documents]
        packed, output = pack(
            np.array(flat, "u4"), offsets, counts, len(documents), dtype=np.dtype("<u2"), eod=eod, limit=10
        )  # fmt: skip
        tokens: list[int] = []
        lengths: list[int] = []
        sequences = []
        for document in documents:
            texts = [list(text) for text in document if text]
            if texts and eod is not None:
                texts[-1].append(eod)
            tokens += [token for text in texts for token in text]
            lengths += map(len, texts)
            sequences.append(len(texts))
        assert packed.tolist() == tokens
        assert packed.dtype == np.dtype("<u2")
        assert output.lengths.tolist() == lengths
        assert output.sequences.tolist() == sequences
