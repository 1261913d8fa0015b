"""WordPiece as transformers reads it: Megatron's rules, on every character that this Python knows."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest
from transformers import AutoTokenizer

from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from megads.data.tokenizers.export import save_for_transformers
from megads.data.tokenizers.export_word_pieces import differing
from megads.errors import DataError
from tests.data.tokenizers.vocabularies import FOREIGN, ODD, PROSE, noise

BITS = (*ODD, *FOREIGN.split(), " ", "\n", "the", "A", "\u03a3", "\u0130", "\xc0", "e\u0301", "\u4e2d", "!", "\u3002")
TEXTS = [*ODD, *(text[:2000] for text in PROSE[:8]), *noise(3, 120, BITS)]


@pytest.mark.parametrize("name", ["bert-lower", "bert-case"])
def test_transformers_gives_the_same_ids(specs, tmp_path, name):
    saved = save_for_transformers(specs[name], tmp_path, 64)
    # As in an exported folder, where the kind of the model could choose another class.
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertForPreTraining"]}))
    ours, theirs = make_tokenizer(specs[name]), AutoTokenizer.from_pretrained(tmp_path)
    assert [text for text in TEXTS if theirs(text, add_special_tokens=False).input_ids != ours.encode(text)] == []
    assert len({number for text in TEXTS for number in ours.encode(text)}) > 100
    assert (saved.notes, theirs.model_max_length, len(theirs)) == ((), 64, ours.vocab_size)
    specials = {role: getattr(theirs, f"{role}_token_id") for role in ("cls", "sep", "pad", "mask")}
    assert specials == {role: getattr(ours.specials, role) for role in specials}
    assert dict(saved.ids) == {"pad": ours.specials.pad}
    pair = theirs("the word", "A word")
    around = [ours.specials.cls, *ours.encode("the word"), ours.specials.sep, *ours.encode("A word"), ours.specials.sep]
    assert pair.input_ids == around
    first = 2 + len(ours.encode("the word"))
    assert pair.token_type_ids == [0] * first + [1] * (len(around) - first)
    assert theirs("a [MASK] b", add_special_tokens=False).input_ids.count(ours.specials.mask) == 1


@pytest.mark.parametrize("name", ["bert-lower", "bert-case"])
def test_every_character_between_two_words(specs, tmp_path, name):
    """All that this Python knows, of letters without case every 97th."""
    save_for_transformers(specs[name], tmp_path, 64)
    kinds = {chr(code): unicodedata.category(chr(code)) for code in range(sys.maxunicode + 1)}
    caseless = [char for char, kind in kinds.items() if kind == "Lo"]
    known = [char for char, kind in kinds.items() if kind not in ("Cn", "Co", "Cs", "Lo")] + caseless[::97]
    texts = [" ".join(f"the{char}a" for char in known[at : at + 100]) for at in range(0, len(known), 100)]
    other = differing(make_tokenizer(specs[name]), texts, tmp_path / "tokenizer.json")
    assert other == []


def test_a_vocabulary_that_leaves_out_an_id_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\na\n")
    with pytest.raises(DataError, match=r"vocab\.txt: has a token twice, or an empty line"):
        save_for_transformers(TokenizerSpec("BertWordPieceCase", vocab_file=str(tmp_path / "vocab.txt")), tmp_path, 64)
