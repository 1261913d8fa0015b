from __future__ import annotations

import numpy as np
import pytest

from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from megads.data.tokenizers.word_pieces import load_word_pieces, word_pieces
from megads.errors import ConfigError
from tests.data.samples.masked.corpora import TOKENS, masked_run, write_vocab
from tests.data.tokenizers.vocabularies import gpt2


def test_pieces_of_a_wordpiece_vocabulary(tmp_path):
    tokenizer = make_tokenizer(TokenizerSpec("BertWordPieceCase", vocab_file=str(write_vocab(tmp_path)), extra_ids=3))
    pieces = word_pieces(tokenizer, "t5", "BertWordPieceCase")
    count = len(TOKENS)
    assert (pieces.pad, pieces.cls, pieces.sep, pieces.mask) == (0, 2, 3, 4)
    assert (pieces.bos, pieces.eos, pieces.sentinels) == (count, count + 1, (count + 2, count + 3, count + 4))
    assert pieces.ids.tolist() == list(range(count + 5))
    assert np.flatnonzero(pieces.continues).tolist() == [i for i, token in enumerate(TOKENS) if token[:2] == "##"]


def test_a_run_without_masked_samples_has_none(tmp_path):
    assert load_word_pieces(masked_run("gpt", "x", write_vocab(tmp_path))) is None
    assert load_word_pieces(masked_run("bert", "x", write_vocab(tmp_path))) is not None


def test_a_tokenizer_without_the_tokens_is_refused(tmp_path):
    vocab = str(write_vocab(tmp_path))
    plain = make_tokenizer(TokenizerSpec("BertWordPieceCase", vocab_file=vocab))
    with pytest.raises(ConfigError, match=r"BertWordPieceCase has no tokens <extra_id_N> .* use VOCAB_EXTRA_IDS=100"):
        word_pieces(plain, "t5", "BertWordPieceCase")
    bytes_only = make_tokenizer(gpt2(tmp_path))
    with pytest.raises(
        ConfigError, match="GPT2BPETokenizer has no cls, sep, mask or pad token, which MODEL_FAMILY=bert"
    ):
        word_pieces(bytes_only, "bert", "GPT2BPETokenizer")
    run = masked_run("bert", "x", write_vocab(tmp_path), data={"tokenizer_type": "NullTokenizer", "vocab_file": ""})
    with pytest.raises(ConfigError, match="NullTokenizer has no words to hide"):
        load_word_pieces(run)
