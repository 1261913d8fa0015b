"""Special tokens and their names, of tokenizers whose library knows of them and of others."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from megads.data.tokenizers.base import Tokenizer, TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from megads.errors import ConfigError, DataError
from megads.inference.tokenizer import (
    encode_text,
    filled,
    name_of,
    sentinels_of,
    spec_given,
    special_tokens,
    with_sentinels,
)
from tests.data.tokenizers import vocabularies


def test_special_tokens_of_a_json_file(tmp_path):
    tokenizer = make_tokenizer(vocabularies.byte_level(tmp_path))
    assert special_tokens(tokenizer) == {0: "<|begin_of_text|>", 1: "<|end_of_text|>"}
    assert tokenizer.encode("ab") == [0, *tokenizer.encode_plain("ab")]


def test_special_tokens_of_sentencepiece_have_names_though_no_text(tmp_path):
    tokenizer = make_tokenizer(TokenizerSpec("Llama2Tokenizer", vocabularies.sentence_piece(tmp_path)))
    assert tokenizer.decode([1]) == ""
    assert special_tokens(tokenizer) == {1: "<s>", 2: "</s>"}
    (word,) = tokenizer.encode_plain("the")[:1]
    assert name_of(tokenizer, word) == tokenizer.decode([word])


def test_a_name_without_a_tokenizer_is_one_line(tmp_path):
    with pytest.raises(DataError, match=r"--tokenizer .*: pass a tokenizer.json, a .model of sentencepiece"):
        spec_given(str(tmp_path))


# What a T5 reads and writes.

WORDS = ("the", "cat", "sat", "on", "a", "mat", "##s")


def _word_pieces(folder: Path, extra_ids: int = 5) -> Tokenizer:
    lines = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS)
    (folder / "vocab.txt").write_text("".join(f"{line}\n" for line in lines))
    spec = TokenizerSpec("BertWordPieceLowerCase", vocab_file=str(folder / "vocab.txt"), extra_ids=extra_ids)
    return make_tokenizer(spec)


def test_sentinels_of_a_text_are_tokens_though_the_vocabulary_takes_them_for_words(tmp_path):
    tokenizer = _word_pieces(tmp_path)
    extra = tokenizer.specials.extra
    the, cat, on = (tokenizer.encode(word)[0] for word in ("the", "cat", "on"))
    assert encode_text(tokenizer, "The <extra_id_0>on<extra_id_3> cat") == [the, extra[0], on, extra[3], cat]
    assert encode_text(tokenizer, "[MASK] the [MASK]") == [extra[0], the, extra[1]]
    assert with_sentinels(tokenizer, "<extra_id_1> [MASK]") == "<extra_id_1> [MASK]"
    with pytest.raises(ConfigError, match=r"the prompt has 6 \[MASK\], and the tokenizer 5 tokens <extra_id_N>"):
        encode_text(tokenizer, "[MASK]" * 6)


def test_masks_of_a_vocabulary_without_sentinels_are_text(tmp_path):
    tokenizer = _word_pieces(tmp_path, extra_ids=0)
    assert encode_text(tokenizer, "[MASK]") == tokenizer.encode("[MASK]")
    assert filled(tokenizer, "the [MASK]", [6], ()) is None


@pytest.mark.parametrize("seed", range(20))
def test_spans_that_are_cut_out_come_back(seed, tmp_path):
    draw, tokenizer = random.Random(seed), _word_pieces(tmp_path)
    words = [draw.choice(WORDS[:-1]) for _ in range(20)]
    starts = sorted(draw.sample(range(0, 20, 4), draw.randint(1, 5)))
    names, text, output = list(sentinels_of(tokenizer).items()), list(words), []
    for (name, token), start in zip(names, starts, strict=False):
        length = draw.randint(1, 3)
        output += [token, *tokenizer.encode(" ".join(words[start : start + length]))]
        text[start : start + length] = [name, *[""] * (length - 1)]
    masked = " ".join(word for word in text if word)
    more = [names[0][1], *tokenizer.encode("a mat")]  # written again, which does not count
    end = tokenizer.specials.eos
    assert end is not None
    assert filled(tokenizer, masked, [*tokenizer.encode("on"), *output, *more, end], (end,)) == " ".join(words)
    for number in range(len(starts)):
        masked = masked.replace(f"<extra_id_{number}>", "[MASK]")
    assert filled(tokenizer, masked, output, (end,)) == " ".join(words)


def test_a_sentinel_that_nothing_is_written_for_stays(tmp_path):
    tokenizer = _word_pieces(tmp_path)
    first = sentinels_of(tokenizer)["<extra_id_0>"]
    output = [first, *tokenizer.encode("cats")]
    assert filled(tokenizer, "a <extra_id_0> <extra_id_1>", output, ()) == "a cats <extra_id_1>"
    assert filled(tokenizer, "a cat", output, ()) is None
