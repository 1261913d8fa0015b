"""Tokenizers as transformers reads them."""

from __future__ import annotations

import json
import pickle

import pytest
from transformers import AutoTokenizer

from megads.data.tokenizers import export
from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from megads.data.tokenizers.export import save_for_transformers
from megads.errors import DataError
from tests.data.tokenizers.vocabularies import FOREIGN, ODD, PROSE, noise, sentence_piece

KINDS = ("gpt2", "gpt2-json", "llama3-json", "unigram-json", "llama2-json", "metaspace-json", "sp", "gpt-sp", "llama2")

BEGINS_WITH_BOS = {"llama3-json", "llama2"}

WITHOUT_DECODER = {"unigram-json", "llama2-json", "metaspace-json"}

PLAIN = [*ODD, *(text[:2000] for text in PROSE[:8]), *noise(1, 40, (*ODD, *FOREIGN.split(), " ", "\n", "the", "A"))]


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_gives_the_same_ids(specs, tmp_path, kind):
    saved = save_for_transformers(specs[kind], tmp_path, 64)
    ours, theirs = make_tokenizer(specs[kind]), AutoTokenizer.from_pretrained(tmp_path)
    different = [text for text in PLAIN if theirs(text).input_ids != ours.encode(text)]
    assert not different
    assert not saved.notes
    assert theirs.model_max_length == 64
    assert len(theirs) == ours.vocab_size
    used = {"bos": kind in BEGINS_WITH_BOS, "eos": True, "pad": True}
    for role, is_used in used.items():
        ours_id = getattr(ours.specials, role) if is_used else None
        assert getattr(theirs, f"{role}_token_id") == ours_id == saved.ids.get(role)
    text = "Hello world, it is 5."
    if kind not in WITHOUT_DECODER:
        assert theirs.decode(ours.encode(text), skip_special_tokens=True) == text


@pytest.mark.parametrize("kind", ["sp", "gpt-sp", "unigram-json"])
def test_in_the_folder_of_a_t5(specs, tmp_path, kind):
    """Its class would add tokens and an end of text of its own."""
    save_for_transformers(specs[kind], tmp_path, 64)
    (tmp_path / "config.json").write_text('{"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}')
    ours, theirs = make_tokenizer(specs[kind]), AutoTokenizer.from_pretrained(tmp_path)
    texts = [*PLAIN, *(["Thank you <extra_id_0> me<extra_id_11>"] if kind == "sp" else [])]
    assert [text for text in texts if theirs(text).input_ids != ours.encode(text)] == []
    assert len(theirs) == ours.vocab_size


def test_special_tokens_are_found_in_texts_where_the_type_finds_them(specs, tmp_path):
    save_for_transformers(specs["sp"], tmp_path, 64)
    ours, theirs = make_tokenizer(specs["sp"]), AutoTokenizer.from_pretrained(tmp_path)
    for text in ("a <EOD>b", "<CLS>x<SEP> <extra_id_0>y<extra_id_11>", "<s> a </s>"):
        assert theirs(text).input_ids == ours.encode(text)


def test_what_a_folder_says_of_its_tokenizer_goes_along(specs, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    save_for_transformers(specs["llama3-json"], source, 64)
    config = json.loads((source / "tokenizer_config.json").read_text())
    config |= {"pad_token": "<|begin_of_text|>", "model_max_length": 99, "padding_side": "left"}
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    (source / "chat_template.jinja").write_text("{{ messages }}")
    saved = save_for_transformers(TokenizerSpec("HFTokenizer", str(source)), target, 64)
    assert saved.ids["pad"] == saved.ids["bos"]
    theirs = AutoTokenizer.from_pretrained(target)
    assert (theirs.model_max_length, theirs.padding_side, theirs.chat_template) == (99, "left", "{{ messages }}")


def test_gpt2_files_go_along(specs, tmp_path):
    save_for_transformers(specs["gpt2"], tmp_path, 64)
    names = {"merges.txt", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.json"}
    assert {each.name for each in tmp_path.iterdir()} == names


def _bare(tmp_path, pieces, added=(), **model):
    """Write a tokenizer.json, with nothing next to it, and return its description."""
    vocab = {piece: number for number, piece in enumerate([*pieces, *added])}
    tokens = [
        {"id": vocab[token], "content": token, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for token in added
    ]
    content = {"version": "1.0", "added_tokens": tokens, "pre_tokenizer": {"type": "Whitespace"}}
    content["model"] = {"type": "BPE", "vocab": vocab, "merges": [], **model}
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return TokenizerSpec("HFTokenizer", str(folder))


def test_no_token_is_made_bos_or_pad_by_its_looks(tmp_path):
    """Evaluation puts a bos before every text: with one that training never saw it measures another number."""
    spec = _bare(tmp_path, ["a", "b", "<s>", "<pad>"], ["</s>"])
    assert make_tokenizer(spec).specials.bos == 2
    (tmp_path / "out").mkdir()
    saved = save_for_transformers(spec, tmp_path / "out", 64)
    assert dict(saved.ids) == {"eos": 4}
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (None, 4, None)


def test_a_bos_that_is_named_or_used_is_written(tmp_path):
    spec = _bare(tmp_path, ["a", "b"], ["<s>", "</s>", "<pad>"])
    (tmp_path / "bare" / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    (tmp_path / "out").mkdir()
    assert dict(save_for_transformers(spec, tmp_path / "out", 64).ids) == {"bos": 2, "eos": 3, "pad": 4}


@pytest.mark.parametrize("name", ["tokenizer.model", "added_tokens.json", "vocab.json"])
def test_a_pickle_beside_a_tokenizer_is_not_copied(tmp_path, name):
    spec = _bare(tmp_path, ["a"], ["</s>"])
    (tmp_path / "bare" / name).write_bytes(pickle.dumps({"a": 1}))
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match=f"{name}: is a pickle, which could run any program"):
        save_for_transformers(spec, tmp_path / "out", 64)


def test_a_unigram_model_comes_out_alike_but_for_what_is_told(specs, tmp_path):
    saved = save_for_transformers(specs["gpt-sp-unigram"], tmp_path, 64)
    ours, theirs = make_tokenizer(specs["gpt-sp-unigram"]), AutoTokenizer.from_pretrained(tmp_path)
    assert all(theirs(text[:1000]).input_ids == ours.encode(text[:1000]) for text in PROSE[:8])
    assert len(saved.notes) == 1
    assert "gives different ids from sentencepiece for 2 of 128 sample texts" in saved.notes[0]
    assert (tmp_path / "tokenizer.model").is_file()


def test_numbers_of_protocol_buffers():
    """Field 1: varint 300; field 2: bytes; field 3: four bytes; field 4: eight bytes."""
    content = b"\x08\xac\x02" + b"\x12\x03abc" + b"\x1d\x01\x02\x03\x04" + b"\x21" + b"\x05" * 8
    expected = [(1, 300), (2, b"abc"), (3, b"\x01\x02\x03\x04"), (4, b"\x05" * 8)]
    assert list(export.fields(content)) == expected


def test_symbols_that_are_never_cut_are_found_and_what_differs_is_told(tmp_path):
    """Behind such a symbol the tokenizers library begins a text again, with a blank; sentencepiece does not."""
    model = sentence_piece(tmp_path, user_defined_symbols=["<tool>", "qzx"])
    spec, target = TokenizerSpec("GPTSentencePieceTokenizer", model), tmp_path / "out"
    target.mkdir()
    saved = save_for_transformers(spec, target, 64)
    ours, theirs = make_tokenizer(spec), AutoTokenizer.from_pretrained(target)
    number = ours.processor.piece_to_id("<tool>")
    assert number in ours.encode("a<tool>b")
    assert number in theirs("a<tool>b").input_ids
    assert [theirs(text).input_ids for text in ODD] == [ours.encode(text) for text in ODD]
    assert "e.g. 'aqzxb qzx'; tokenizer.model in the folder is the original" in saved.notes[0]
