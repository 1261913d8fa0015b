"""A tokenizer.json gives the ids of transformers."""

from __future__ import annotations

import json

import pytest

from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import identity, load_tokenizer, make_tokenizer, vocab_size, vocab_size_of
from megads.errors import ConfigError, DataError
from tests.data.tokenizers.conftest import run_with
from tests.data.tokenizers.vocabularies import ODD, PROSE, SPECIAL, noise

TEXTS = (*ODD, *PROSE[:6], *noise(1, 150))


def test_huggingface_is_transformers_with_what_it_puts_around_a_text(specs):
    from transformers import PreTrainedTokenizerFast

    for name in ("llama3-json", "wordpiece-json", "unigram-json", "gpt2-json"):
        tokenizer = make_tokenizer(specs[name])
        other = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer.path))
        for text in (*TEXTS, *SPECIAL):
            assert tokenizer.encode(text) == other.encode(text), (name, text)
    assert make_tokenizer(specs["llama3-json"]).encode("")[0] == 0, "Llama 3 begins every text"


def test_extra_ids_of_huggingface(specs):
    spec = TokenizerSpec("PretrainedFromHF", specs["llama3-json"].model, extra_ids=4)
    tokenizer, plain = make_tokenizer(spec), make_tokenizer(specs["llama3-json"])
    assert tokenizer.specials.extra == tuple(range(plain.vocab_size, plain.vocab_size + 4))
    assert tokenizer.vocab_size == vocab_size(spec) == plain.vocab_size + 4
    assert tokenizer.encode("<extra_id_2>")[1:] == [plain.vocab_size + 2]


@pytest.mark.parametrize("name", ["", "tokenizer.json"])
def test_file_or_folder(folder, name):
    tokenizer = load_tokenizer(run_with(folder / name))
    text = "def g(y): return 'caf\u00e9 \u2713'\n\t"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eod == 0
    assert tokenizer.vocab_size == vocab_size_of(run_with(folder)) == tokenizer.inner.get_vocab_size()
    assert tokenizer.encode("<|endoftext|>") == [0]


def test_added_tokens_beyond_the_base_vocabulary_count(folder, tmp_path):
    content = json.loads((folder / "tokenizer.json").read_text())
    base = len(content["model"]["vocab"])
    content["added_tokens"].append({**content["added_tokens"][0], "id": base, "content": "<|extra|>"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert vocab_size_of(run_with(tmp_path)) == base + 1
    assert load_tokenizer(run_with(tmp_path)).inner.get_vocab_size() == base + 1


@pytest.mark.parametrize("token", ["def", {"content": "def"}])
def test_eos_of_the_folders_config_comes_first(folder, tmp_path, token):
    content = json.loads((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
    assert load_tokenizer(run_with(tmp_path)).eod == content["model"]["vocab"]["def"]


def test_limits_saved_in_the_file_are_not_applied(folder, tmp_path):
    whole = load_tokenizer(run_with(folder))
    limited = load_tokenizer(run_with(folder)).inner
    limited.enable_truncation(3)
    limited.enable_padding(length=50)
    limited.save(str(tmp_path / "tokenizer.json"))
    text = "def f(x): return x"
    assert load_tokenizer(run_with(tmp_path)).encode(text) == whole.encode(text)


def test_unigram_vocabulary_is_a_list(tmp_path):
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["</s>", 0.0], ["a", -1.0]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    tokenizer = load_tokenizer(run_with(tmp_path))
    assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.encode("a")) == (3, 1, [2])


def test_names_are_never_downloaded():
    with pytest.raises(
        DataError, match=r"google/gemma-7B: no such file or folder; nothing is downloaded, .*hf download"
    ):
        vocab_size_of(run_with("google/gemma-7B"))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["vocab.json", "merges.txt"], "TOKENIZER_TYPE=GPT2BPETokenizer"),
        (["tokenizer.model"], "TOKENIZER_TYPE=Llama2Tokenizer or GPTSentencePieceTokenizer"),
        (["vocab.txt"], "TOKENIZER_TYPE=BertWordPieceCase"),
        ([], "transformers writes one"),
    ],
)
def test_folders_of_slow_tokenizers_are_told_what_works(tmp_path, files, expected):
    for name in files:
        (tmp_path / name).write_text("x")
    with pytest.raises(DataError, match=rf"has no tokenizer.json; .*{expected}"):
        vocab_size_of(run_with(tmp_path))


def test_tokens_with_a_meaning(folder, tmp_path):
    tokenizer = load_tokenizer(run_with(folder))
    assert (tokenizer.specials.eos, tokenizer.specials.bos, tokenizer.specials.extra) == (0, None, ())
    content = json.loads((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "def", "bos_token": {"content": "f"}}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "x", "eos_token": None}))
    found = load_tokenizer(run_with(tmp_path)).specials
    vocab = content["model"]["vocab"]
    assert (found.pad, found.bos, found.eos) == (vocab["x"], vocab["f"], 0), "tokenizer_config.json comes first"


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


def test_a_special_token_ends_documents_before_a_piece_that_has_such_a_name(tmp_path):
    tokenizer = make_tokenizer(_bare(tmp_path, ["<|endoftext|>", "a"], ["</s>"]))
    assert (tokenizer.eod, tokenizer.specials.eos) == (2, 2)


def test_an_end_that_is_named_but_missing_is_not_guessed(tmp_path):
    spec = _bare(tmp_path, ["a"], ["</s>"])
    (tmp_path / "bare" / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    with pytest.raises(ConfigError, match=r"has no '<end>', which tokenizer_config\.json names as eos_token"):
        _ = make_tokenizer(spec).eod


@pytest.mark.parametrize("use", [make_tokenizer, vocab_size, identity])
def test_dropout_is_refused(tmp_path, use):
    with pytest.raises(DataError, match=r"has BPE dropout 0\.1, which encodes a text differently every time"):
        use(_bare(tmp_path, ["a", "b", "ab"], merges=[["a", "b"]], dropout=0.1))


def test_dropout_of_nothing_is_none(tmp_path):
    assert make_tokenizer(_bare(tmp_path, ["a"], dropout=0.0)).encode("a") == [0]


def test_ids_beyond_a_token_file(tmp_path):
    spec = _bare(tmp_path, ["a"])
    path = tmp_path / "bare" / "tokenizer.json"
    path.write_text(path.read_text().replace('"a": 0', f'"a": {10**18}'))
    with pytest.raises(DataError, match=r"its largest id is 10{18}, token files hold 0\.\.2147483647"):
        vocab_size(spec)
    with pytest.raises(ConfigError, match="token files hold ids below 2147483648"):
        vocab_size(TokenizerSpec("NullTokenizer", vocab_size=10**18))
