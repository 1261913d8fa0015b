"""BertWordPiece* gives the ids of BERT's release."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer, vocab_size
from megads.errors import ConfigError, DataError
from tests.data.tokenizers.vocabularies import FOREIGN, ODD, PROSE, SPECIAL, noise

TEXTS = (*ODD, *PROSE[:6], *noise(1, 150))


@pytest.mark.parametrize("name", ["bert-lower", "bert-case"])
def test_bert_is_the_release(specs, name):
    from transformers.models.bert.tokenization_bert_legacy import BasicTokenizer, WordpieceTokenizer

    tokenizer = make_tokenizer(specs[name])
    basic = BasicTokenizer(do_lower_case=name == "bert-lower", never_split=[])
    pieces = WordpieceTokenizer(tokenizer.vocab, "[UNK]", max_input_chars_per_word=200)
    for raw in (*TEXTS, *SPECIAL):
        # transformers composes marks first and drops characters without a meaning; the release does neither.
        text = "".join(
            each for each in unicodedata.normalize("NFC", raw) if unicodedata.category(each) not in ("Co", "Cn")
        )
        expected = [tokenizer.vocab[piece] for word in basic.tokenize(text) for piece in pieces.tokenize(word)]
        assert tokenizer.encode(text) == expected, text
    assert tokenizer.encode("the \ue000 the")[1] == tokenizer.vocab["[UNK]"]


def test_bert_is_transformers_on_plain_text(specs):
    from transformers import BertTokenizerFast

    other = BertTokenizerFast(vocab=specs["bert-lower"].vocab_file, do_lower_case=True)
    tokenizer = make_tokenizer(specs["bert-lower"])
    for text in (*PROSE[:6], ODD[3], ODD[4], ODD[5], ODD[7], ODD[8], FOREIGN):
        assert tokenizer.encode(text) == other.encode(text, add_special_tokens=False), text


def test_bert_adds_tokens_behind_the_vocabulary_and_has_no_end_of_document(specs, tmp_path):
    lower, case = make_tokenizer(specs["bert-lower"]), make_tokenizer(specs["bert-case"])
    base = len(Path(specs["bert-case"].vocab_file).read_text().splitlines())
    assert (lower.specials.bos, lower.specials.eos, lower.specials.extra) == (
        base,
        base + 1,
        (base + 2, base + 3, base + 4),
    )
    assert (case.vocab_size, lower.vocab_size, vocab_size(specs["bert-lower"])) == (base + 2, base + 5, base + 5)
    assert lower.decode([lower.specials.cls, *lower.encode("unlikely words"), lower.specials.sep])[:5] == "[CLS]"
    assert lower.specials.cls not in lower.encode("[CLS]"), "a special token in a text is text"
    with pytest.raises(ConfigError, match=r"BertWordPieceLowerCase has no end-of-document token; drop --append-eod"):
        _ = lower.eod
    (tmp_path / "vocab.txt").write_text("[PAD]\n[EOS]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    has_eos = make_tokenizer(TokenizerSpec("BertWordPieceCase", vocab_file=str(tmp_path / "vocab.txt"), extra_ids=1))
    assert (has_eos.specials.eos, has_eos.specials.bos, has_eos.specials.extra) == (1, 7, (8,))
    (tmp_path / "vocab.txt").write_text("a\nb\n[UNK]\n")
    with pytest.raises(DataError, match=r"has no \[CLS\], \[SEP\], \[PAD\], \[MASK\]"):
        make_tokenizer(TokenizerSpec("BertWordPieceCase", vocab_file=str(tmp_path / "vocab.txt")))


def test_a_word_has_200_characters_at_most(specs):
    tokenizer = make_tokenizer(specs["bert-case"])
    unknown = tokenizer.vocab["[UNK]"]
    assert unknown not in tokenizer.encode("x" * 200)
    assert tokenizer.encode("x" * 201) == [unknown]
