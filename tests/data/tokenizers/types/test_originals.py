"""Each type gives the ids of the program it stands for."""

from __future__ import annotations

import itertools
import json
import unicodedata
from pathlib import Path

import pytest

from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import FAMILIES, make_tokenizer, vocab_size
from megads.errors import ConfigError, DataError
from tests.data.tokenizers.vocabularies import FOREIGN, ODD, PROSE, SPECIAL, noise

TEXTS = (*ODD, *PROSE[:6], *noise(1, 150))
PLAIN = (*ODD, *PROSE[:6])  # without special tokens


class _GPT2:
    """GPT-2's release, as it is documented: expression, bytes as characters, lowest merge first."""

    EXPRESSION = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

    def __init__(self, folder: Path):
        import regex

        self.vocab = json.loads((folder / "vocab.json").read_text())
        lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")[1:-1]
        self.ranks = {tuple(line.split()): rank for rank, line in enumerate(lines)}
        shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = [byte for byte in range(256) if byte not in shown]
        self.letters = {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
        self.split = regex.compile(self.EXPRESSION).findall

    def encode(self, text: str) -> list[int]:
        ids = []
        for word in self.split(text):
            parts = [self.letters[byte] for byte in word.encode()]
            while True:
                pairs = [(self.ranks.get(pair, 1 << 30), i) for i, pair in enumerate(itertools.pairwise(parts))]
                rank, place = min(pairs, default=(1 << 30, 0))
                if rank == 1 << 30:
                    break
                parts[place : place + 2] = ["".join(parts[place : place + 2])]
            ids += [self.vocab.get(part, 0) for part in parts]
        return ids


def test_gpt2_is_the_release(specs):
    tokenizer = make_tokenizer(specs["gpt2"])
    release = _GPT2(Path(specs["gpt2"].vocab_file).parent)
    for text in (*TEXTS, *SPECIAL):
        assert tokenizer.encode(text) == release.encode(text), text
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eod == tokenizer.specials.eos == release.vocab["<|endoftext|>"]
    assert tokenizer.eod not in tokenizer.encode("a <|endoftext|> b"), "a special token in a text is text"


def test_gpt2_is_transformers_where_no_special_token_occurs(specs):
    from transformers import GPT2Tokenizer

    folder = Path(specs["gpt2"].vocab_file).parent
    other = GPT2Tokenizer(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))
    tokenizer = make_tokenizer(specs["gpt2"])
    for text in PLAIN:
        assert tokenizer.encode(text) == other.encode(text), text


def test_gpt2_takes_a_folder_and_refuses_what_does_not_fit(specs, tmp_path):
    folder = Path(specs["gpt2"].vocab_file).parent
    by_folder = TokenizerSpec("GPT2BPETokenizer", str(folder))
    assert make_tokenizer(by_folder).encode("the caf\u00e9") == make_tokenizer(specs["gpt2"]).encode("the caf\u00e9")
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_text("#version\na b\n")
    for spec, expected in [
        (TokenizerSpec("GPT2BPETokenizer"), "VOCAB_FILE is not set"),
        (TokenizerSpec("GPT2BPETokenizer", vocab_file="nowhere.json"), "VOCAB_FILE nowhere.json: no such file"),
        (TokenizerSpec("GPT2BPETokenizer", str(tmp_path)), "does not fit the vocabulary"),
        (TokenizerSpec("GPT2BPETokenizer", str(folder), extra_ids=2), "set VOCAB_EXTRA_IDS=0"),
    ]:
        with pytest.raises((ConfigError, DataError), match=expected):
            make_tokenizer(spec)
    (tmp_path / "merges.txt").write_text("#version\na b c\n")
    with pytest.raises(DataError, match=r"merges.txt:2: expected two symbols"):
        make_tokenizer(TokenizerSpec("GPT2BPETokenizer", str(tmp_path)))


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


def test_sentencepiece_types_are_the_library(specs):
    import sentencepiece

    library = sentencepiece.SentencePieceProcessor(model_file=specs["llama2"].model)
    plain, llama = make_tokenizer(specs["gpt-sp"]), make_tokenizer(specs["llama2"])
    for text in (*TEXTS, *SPECIAL):
        ids = library.encode(text)
        assert plain.encode(text) == ids
        assert llama.encode(text) == [library.bos_id(), *ids], "Llama 2 begins every text"
        assert plain.decode(ids) == library.decode(ids)
    assert plain.eod == llama.eod == library.eos_id() == plain.specials.eos
    assert plain.vocab_size == llama.vocab_size == vocab_size(specs["llama2"]) == len(library)


def test_llama_is_transformers(specs):
    import sentencepiece
    from transformers import LlamaTokenizer

    library = sentencepiece.SentencePieceProcessor(model_file=specs["llama2"].model)
    vocab = {library.id_to_piece(number): number for number in range(len(library))}
    merges = json.loads(Path(specs["metaspace-json"].model).read_text())["model"]["merges"]
    other = LlamaTokenizer(vocab=vocab, merges=[tuple(pair) for pair in merges], legacy=True)
    llama = make_tokenizer(specs["llama2"])
    for text in (*PROSE[:4], *(each for each in ODD if each and each[0] != " ")):
        assert llama.encode(text) == [library.bos_id(), *other.encode(text, add_special_tokens=False)], text


def _with_added(library, found: dict[str, int], text: str) -> list[int]:
    """The special token that comes first is cut out, again and again, as Megatron does."""
    ids = []
    while places := {token: text.index(token) for token in found if token in text}:
        first = min(places, key=places.__getitem__)
        ids += [*library.encode(text[: places[first]]), found[first]]
        text = text[places[first] + len(first) :]
    return ids + library.encode(text)


@pytest.mark.parametrize("name", ["sp", "sp-unigram"])
def test_sentencepiece_adds_tokens_and_finds_them(specs, name):
    tokenizer = make_tokenizer(specs[name])
    library, base = tokenizer.processor, len(tokenizer.processor)
    special = tokenizer.specials
    assert (special.cls, special.sep, tokenizer.eod, special.mask) == (base, base + 1, base + 2, base + 3)
    if name == "sp":
        assert (special.pad, special.bos, special.eos) == (base + 4, 1, 2), "a model without padding gets one"
        assert special.extra == tuple(range(base + 5, base + 17))
    else:
        assert (special.pad, special.bos, special.eos, special.extra) == (3, 1, 2, ())
    assert tokenizer.vocab_size == vocab_size(specs[name]) == base + (17 if name == "sp" else 4)
    for text in (*TEXTS, *SPECIAL):
        assert tokenizer.encode(text) == _with_added(library, dict(tokenizer.found), text), text
    assert tokenizer.decode([base + 2]).strip() == "<EOD>"


def test_broken_models_of_sentencepiece(specs, tmp_path):
    path = tmp_path / "x.model"
    path.write_bytes(b"nonsense")
    for spec, expected in [
        (TokenizerSpec("Llama2Tokenizer", str(path)), "sentencepiece cannot read it"),
        (TokenizerSpec("Llama2Tokenizer", str(tmp_path)), "tokenizer.model: no such file; expected a .model"),
        (TokenizerSpec("GPTSentencePieceTokenizer"), "TOKENIZER_MODEL is not set"),
        (TokenizerSpec("Llama2Tokenizer", specs["llama2"].model, extra_ids=1), "has no tokens <extra_id_N>"),
    ]:
        with pytest.raises((ConfigError, DataError), match=expected):
            make_tokenizer(spec)


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


def test_every_type_can_be_made(specs):
    made = {spec.type: make_tokenizer(spec) for spec in specs.values()}
    assert set(made) == set(FAMILIES)
    assert all(make_tokenizer(spec).fingerprint == FAMILIES[spec.type].identity(spec) for spec in specs.values())
    with pytest.raises(ConfigError, match=r"tokenizer type 'Tik': unknown; known types: HFTokenizer"):
        make_tokenizer(TokenizerSpec("Tik"))


def test_half_a_pair_of_surrogates_is_no_text(specs):
    for name in ("gpt2", "llama3-json", "gpt-sp"):
        with pytest.raises((UnicodeEncodeError, TypeError, RuntimeError)):
            make_tokenizer(specs[name]).encode("a\ud800b")
