from __future__ import annotations

import numpy as np
import pytest

from megads.data.formats.token_file import open_dataset
from megads.data.samples import gpt
from megads.data.samples.gpt import (
    LAST_EPOCH_CUTOFF,
    GPTRecipe,
    GPTSamples,
    Stamp,
    build_sample_index,
    count_epochs,
)
from megads.errors import DataError
from tests.data.factory import write_dataset
from tests.data.samples.in_memory import collect, hold

LENGTHS = [7, 3, 12, 5, 9, 4]

# Made with Megatron-core's code: lengths as above, sequence length 8, seed 1234.
# requested: (epochs, whole samples or None, document_index, sample_index, shuffle_index)
GOLDEN = {
    4: (1, None, "2 1 5 0 4 3", "0,0 0,8 2,1 3,5 4,6", "0 2 1 3"),
    6: (
        2,
        4,
        "2 1 5 0 4 3 0 4 3 2 5 1",
        "0,0 0,8 2,1 3,5 4,6 6,0 7,1 8,0 9,3 9,11",
        "1 3 0 2 5 4 7 8 6",
    ),
    9: (
        2,
        None,
        "1 2 5 2 3 4 1 0 4 5 0 3",
        "0,0 1,5 2,1 3,5 4,1 5,4 7,0 8,1 9,0 10,4",
        "7 3 5 1 4 8 0 2 6",
    ),
    12: (
        3,
        None,
        "5 3 5 4 1 2 0 2 4 1 1 3 2 4 0 5 0 3",
        "0,0 1,4 3,3 4,2 5,7 6,3 7,4 8,0 8,8 11,1 12,4 13,0 13,8 15,0 16,4",
        "7 10 4 1 11 8 3 9 13 12 5 0 2 6",
    ),
}
FIRST_SAMPLES = {
    4: [
        [*range(110, 119)],
        [137, 138, 139, *range(100, 106)],
        [118, 119, 120, 121, 107, 108, 109, 136, 137],
        [105, 106, *range(127, 134)],
    ],
    6: [[118, 119, 120, 121, 107, 108, 109, 136, 137], [105, 106, *range(127, 134)], [*range(110, 119)]],
    12: [[*range(127, 136)], [*range(114, 122), 127], [117, 118, 119, 120, 121, 100, 101, 102, 103]],
}


@pytest.fixture
def data(tmp_path) -> str:
    return write_dataset(tmp_path, LENGTHS, seed=None, start=100)


def _samples(
    prefix: str, documents: range, seq_length: int, wanted: int | None, seed: int, cutoff: float = LAST_EPOCH_CUTOFF
) -> GPTSamples:
    stamp = Stamp.of(prefix)
    recipe = GPTRecipe(prefix, stamp, documents.start, documents.stop, seq_length, wanted, seed, cutoff)
    return GPTSamples(open_dataset(prefix), hold(recipe), seq_length)


def _index(lengths: np.ndarray, documents: np.ndarray, seq_length: int) -> np.ndarray:
    return np.concatenate(list(build_sample_index(lengths, documents, seq_length)))


@pytest.mark.parametrize("requested", GOLDEN)
def test_indices_are_megatrons(data, requested):
    epochs, whole, documents, samples, shuffle = GOLDEN[requested]
    got = collect(GPTRecipe(data, Stamp.of(data), 0, 6, 8, requested, 1234))
    counted = count_epochs(sum(LENGTHS), 8, requested)
    assert counted.number == epochs
    assert (counted.whole_samples < counted.samples) == (whole is not None)
    assert whole in (None, counted.whole_samples)
    assert got["document_index"].tolist() == [int(word) for word in documents.split()]
    assert got["sample_index"].tolist() == [[int(part) for part in word.split(",")] for word in samples.split()]
    assert got["shuffle_index"].tolist() == [int(word) for word in shuffle.split()]
    assert [got["document_index"].dtype, got["sample_index"].dtype, got["shuffle_index"].dtype] == ["i4", "i4", "u4"]


@pytest.mark.parametrize("requested", FIRST_SAMPLES)
def test_samples_are_megatrons(data, requested):
    got = _samples(data, range(6), 8, requested, 1234)
    expected = FIRST_SAMPLES[requested]
    assert [got[i].tolist() for i in range(len(expected))] == expected
    assert got[0].dtype == np.int64


def _walk(lengths: list[int], documents: list[int], seq_length: int, samples: int) -> list[list[int]]:
    """Megatron's loop: consume seq_length + 1 tokens, step back one."""
    position, offset, out = 0, 0, [[0, 0]]
    for _ in range(samples):
        left = seq_length + 1
        while left:
            here = lengths[documents[position]] - offset
            left -= here
            if left <= 0:
                offset, left = offset + left + here - 1, 0
            else:
                position, offset = position + 1, 0
        out.append([position, offset])
    return out


@pytest.mark.parametrize("seed", range(200))
def test_sample_index_equals_the_loop_over_documents(seed, monkeypatch):
    rng = np.random.RandomState(seed)
    lengths = rng.randint(0, rng.choice([2, 10, 200]), rng.randint(3, 60)).astype(np.int32)
    lengths[rng.randint(len(lengths))] += 1
    documents = rng.randint(0, len(lengths), rng.randint(5, 200)).astype(np.int32)
    documents[0] = int(np.argmax(lengths))
    seq_length = int(rng.randint(1, 40))
    monkeypatch.setattr(gpt, "_CHUNK", int(rng.choice([1, 2, 7, 50, 1 << 20])))
    got = _index(lengths, documents, seq_length)
    assert len(got) == (lengths[documents].sum() - 1) // seq_length + 1
    assert got.tolist() == _walk(lengths.tolist(), documents.tolist(), seq_length, len(got) - 1)


def test_positions_beyond_32_bits_are_exact():
    """3 documents of 2**31 - 1 tokens: the sums do not fit 32 bits."""
    lengths = np.full(3, 2**31 - 1, np.int32)
    got = _index(lengths, np.arange(3, dtype=np.int32), 2**20)
    last = len(got) - 1
    position, offset = divmod(last * 2**20, 2**31 - 1)
    assert got[last].tolist() == [position, offset]


def test_one_epoch_holds_every_token_once(data):
    got = _samples(data, range(1, 5), 4, None, 7)
    tokens = np.concatenate([got[i][:-1] for i in range(len(got))])
    assert len(got) == (29 - 1) // 4
    assert len(set(tokens.tolist())) == len(tokens)
    assert set(tokens.tolist()) <= set(range(107, 136))


@pytest.mark.parametrize("cutoff", [0.8, 0.95])
def test_epoch_count_is_the_least_that_suffices(cutoff):
    rng = np.random.RandomState(0)
    for _ in range(300):
        tokens, seq, wanted = (int(x) for x in rng.randint(1, 300, 3))
        epochs = count_epochs(tokens, seq, wanted, cutoff)
        assert epochs.samples >= wanted
        assert epochs.number == 1 or ((epochs.number - 1) * tokens - 1) // seq < wanted


def test_cutoff_decides_whether_the_last_epoch_is_shuffled_alone():
    # 101 tokens hold 10 samples of 10; 19 samples need 9 of the second epoch.
    for cutoff, apart in ((0.8, False), (0.9, False), (1.0, True)):
        epochs = count_epochs(101, 10, 19, cutoff)
        assert (epochs.whole_samples < epochs.samples) == apart


def test_seed_changes_the_order_only(data):
    orders = [[_samples(data, range(6), 8, 4, seed)[i].tolist() for i in range(4)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_number_out_of_range(data):
    got = _samples(data, range(6), 8, 4, 1234)
    for i in (-1, len(got)):
        with pytest.raises(IndexError):
            got[i]


def test_documents_without_tokens_are_refused(data):
    with pytest.raises(DataError, match=r"documents 3..3 hold 0 tokens"):
        _samples(data, range(3, 3), 8, 4, 1234)
