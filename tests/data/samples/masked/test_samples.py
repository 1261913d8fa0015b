from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from megads.data.formats.token_file import open_dataset
from megads.data.samples.gpt import Stamp
from megads.data.samples.masked.masking import WordPieces
from megads.data.samples.masked.samples import BertSamples, T5Samples
from megads.data.samples.masked.sentence_map import SentenceRecipe
from megads.data.samples.recipe import Columns
from megads.errors import DataError
from tests.data.samples.in_memory import hold
from tests.data.samples.sentences import PIECES, VOCAB, write_sentences
from tests.data.samples.upstream import megatron_core

SEED = 1234


def _arrays(prefix: str, documents: int, max_length: int, least: int, wanted: int | None, seed: int = SEED) -> Columns:
    return hold(SentenceRecipe(prefix, Stamp.of(prefix), 0, documents, max_length, least, wanted, seed))


@pytest.fixture
def prefix(tmp_path) -> str:
    return write_sentences(tmp_path)


def _bert(prefix: str) -> BertSamples:
    return BertSamples(open_dataset(prefix), _arrays(prefix, 4, 13, 2, 6), PIECES, seq_length=16, seed=SEED)


def _t5(prefix: str, pieces: WordPieces = PIECES, decoder: int = 16) -> T5Samples:
    arrays = _arrays(prefix, 4, 22, 1, 8)
    return T5Samples(open_dataset(prefix), arrays, pieces, encoder_length=24, decoder_length=decoder, seed=SEED)


def _rows(prefix: str, max_length: int, least: int, wanted: int) -> list[list[int]]:
    held = _arrays(prefix, 4, max_length, least, wanted)["samples"]
    return held.read(0, len(held)).reshape(-1, 3).tolist()


def test_bert_samples_are_megatrons(prefix):
    samples = _bert(prefix)
    assert _rows(prefix, 13, 2, 6) == [[8, 10, 13], [4, 8, 13], [0, 3, 13]] * 2
    assert len(samples) == 6
    expected = [
        ([1, *range(97, 104), 2, *range(88, 92), 3, 93, 2], 92, 13, 1),
        ([1, *range(72, 80), 178, 81, 2, 85, 86, 87, 2], 80, 9, 0),
        ([1, *range(23, 30), 2, 32, 3, *range(34, 38), 2], 33, 10, 0),
    ]
    for i, (text, label, place, exchanged) in enumerate(expected):
        got = samples[i]
        assert got["text"].tolist() == text
        assert got["is_random"] == exchanged
        assert {k: int(got["labels"][k]) for k in np.flatnonzero(got["labels"] >= 0)} == {place: label}
        assert np.flatnonzero(got["loss_mask"]).tolist() == [place]
        assert got["padding_mask"].tolist() == [1] * 16
        halves = text.index(2) + 1
        assert got["types"].tolist() == [0] * halves + [1] * (16 - halves)


def test_t5_samples_are_megatrons(prefix):
    samples = _t5(prefix)
    rows = [(0, 3), (3, 4), (3, 4), (8, 10), (0, 3), (4, 8), (4, 8), (8, 10)]
    assert _rows(prefix, 22, 1, 8) == [[*row, 22] for row in rows]
    assert len(samples) == 8
    expected = [
        ([*range(20, 31), 190, *range(34, 38)], [31, 32, 33]),
        ([38, 190, *range(42, 60)], [39, 40, 41]),
        ([190, *range(41, 60)], [38, 39, 40]),
    ]
    for i, (encoder, span) in enumerate(expected):
        got = samples[i]
        assert got["text_enc"].tolist() == encoder + [0] * (24 - len(encoder))
        assert got["text_dec"].tolist() == [4, 190, *span] + [0] * 11
        assert got["labels"].tolist() == [190, *span, 5] + [-1] * 11
        assert got["loss_mask"].tolist() == [1] * 5 + [0] * 11
        assert got["truncated"] == int(i > 0)
        assert (got["length_enc"], got["length_dec"]) == (len(encoder), 5)


def _random_file(tmp_path, dice: np.random.RandomState) -> tuple[str, int]:
    counts = dice.randint(1, 8, 30)
    lengths = dice.randint(1, 40, counts.sum())
    tokens = dice.randint(6, 190, lengths.sum())
    documents = np.concatenate(([0], np.cumsum(counts)))
    return write_sentences(tmp_path, lengths.tolist(), documents.tolist(), tokens), len(counts)


class _Vocabulary:
    """What megatron-core asks of a tokenizer."""

    cls, sep, mask, pad, bos, eos = 1, 2, 3, 0, 4, 5
    additional_special_tokens_ids = list(PIECES.sentinels)  # noqa: RUF012
    inv_vocab = {i: f"##{i}" if PIECES.continues[i] else f"{i}" for i in range(VOCAB)}  # noqa: RUF012


def _theirs(kind: Any, prefix: str, samples: np.ndarray, seed: int, **config: Any) -> Any:
    """Return megatron-core's data set, with its map given."""
    made = kind.__new__(kind)
    made.dataset = megatron_core().IndexedDataset(prefix)
    made.sample_index = samples.astype(np.int64)
    made.token_lookup = list(_Vocabulary.inv_vocab)
    made._pad_token_id = 0
    made.config = SimpleNamespace(
        tokenizer=_Vocabulary,
        random_seed=seed,
        masking_probability=0.15,
        masking_do_full_word=True,
        masking_do_permutation=False,
        masking_use_longer_ngrams=False,
        **config,
    )
    return made


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("head", [True, False])
def test_bert_equals_megatron_core(tmp_path, seed, head):
    core, dice = megatron_core(), np.random.RandomState(seed)
    prefix, documents = _random_file(tmp_path, dice)
    seq_length = int(dice.randint(8, 100))
    arrays = _arrays(prefix, documents, seq_length - 3, 2 if head else 1, 60, seed + 1)
    ours = BertSamples(open_dataset(prefix), arrays, PIECES, seq_length=seq_length, seed=seed + 1, binary_head=head)
    theirs = _theirs(
        core.BERTMaskedWordPieceDataset,
        prefix,
        arrays["samples"].array.reshape(-1, 3),
        seed + 1,
        sequence_length=seq_length,
        classification_head=head,
        masking_max_ngram=3,
        masking_use_geometric_distribution=False,
    )
    for i in range(len(ours)):
        expected = theirs[i]
        got = ours[i]
        assert got.keys() == expected.keys()
        # Upstream takes a random token that happens to be the pad for padding.
        got["padding_mask"] = got["padding_mask"] * (got["text"] != 0)
        for name, value in expected.items():
            assert np.array_equal(got[name], value), (i, name)


@pytest.mark.parametrize("seed", range(8))
def test_t5_equals_megatron_core(tmp_path, seed):
    core, dice = megatron_core(), np.random.RandomState(seed)
    prefix, documents = _random_file(tmp_path, dice)
    length = int(dice.randint(8, 50))
    arrays = _arrays(prefix, documents, length - 2, 1, 60, seed + 1)
    ours = T5Samples(open_dataset(prefix), arrays, PIECES, encoder_length=length, decoder_length=length, seed=seed + 1)
    theirs = _theirs(
        core.T5MaskedWordPieceDataset,
        prefix,
        arrays["samples"].array.reshape(-1, 3),
        seed + 1,
        sequence_length=length,
        sequence_length_encoder=length,
        sequence_length_decoder=length,
        masking_max_ngram=10,
        masking_use_geometric_distribution=True,
    )
    for i in range(len(ours)):
        expected, got = theirs[i], ours[i]
        for name in ("text_enc", "text_dec", "labels", "loss_mask", "truncated"):
            assert np.array_equal(got[name], expected[name]), (i, name)
        assert got["length_enc"] == expected["enc_mask"].sum()
        assert got["length_dec"] == expected["dec_mask"].sum()


def test_pad_is_not_taken_for_a_kind_of_text(tmp_path):
    """Upstream fills types and masks with the pad id, which is wrong unless it is 0."""
    prefix = write_sentences(tmp_path, [3, 3], [0, 2])
    pieces = WordPieces(PIECES.ids, PIECES.continues, 1, 2, 3, pad=9)
    got = BertSamples(open_dataset(prefix), _arrays(prefix, 1, 13, 2, 1), pieces, seq_length=16, seed=1)[0]
    assert got["text"].tolist()[9:] == [9] * 7
    assert got["types"].tolist()[9:] == [0] * 7
    assert got["padding_mask"].tolist() == [1] * 9 + [0] * 7


def test_what_does_not_fit_is_told(prefix):
    few = WordPieces(PIECES.ids, PIECES.continues, 1, 2, 3, 0, 4, 5, sentinels=())
    with pytest.raises(DataError, match=r"the vocabulary has 0 tokens <extra_id_N>; raise VOCAB_EXTRA_IDS"):
        _t5(prefix, few)[0]
    with pytest.raises(
        DataError, match=r"a sample of \d+ and 5 tokens does not fit an encoder of 24 and a decoder of 4"
    ):
        _t5(prefix, decoder=4)[0]
    small = WordPieces(PIECES.ids[:30], PIECES.continues[:30], 1, 2, 3, 0, 4, 5, PIECES.sentinels)
    with pytest.raises(DataError, match=r"holds token \d+, but the vocabulary has 30"):
        _t5(prefix, small)[0]
    for samples in (_bert(prefix), _t5(prefix)):
        for wrong in (-1, len(samples)):
            with pytest.raises(IndexError):
                samples[wrong]
