"""Small vocabularies of every kind, trained on text that every machine has."""

from __future__ import annotations

import io
import json
import pydoc_data.topics
import random
import string
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.train import save, train_bpe

FOREIGN = (
    "\u0421\u044a\u0435\u0448\u044c \u0436\u0435 \u0435\u0449\u0451 \u044d\u0442\u0438\u0445 \u043c\u044f"
    "\u0433\u043a\u0438\u0445 \u0431\u0443\u043b\u043e\u043a. \u039e\u03b5\u03c3\u03ba\u03b5\u03c0\u03ac\u03b6"
    "\u03c9 \u03c4\u1f74\u03bd \u03c8\u03c5\u03c7\u03bf\u03c6\u03b8\u03cc\u03c1\u03b1. \xc0 no\xebl, o\xf9 un "
    "z\xe9phyr ha\xef me v\xeat. \u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3067\u3059\u3002\u4e2d\u6587\u53e5"
    "\u5b50\u3002 \ud55c\uad6d\uc5b4 \ubb38\uc7a5. \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u05d3\u05d2 "
    "\u05e1\u05e7\u05e8\u05df \u0646\u0635 \u0639\u0631\u0628\u064a \u0939\u093f\u0928\u094d\u0926\u0940 "
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd"
)
PROSE = [text for name, text in sorted(pydoc_data.topics.topics.items())][:40]
TRAINING = [text[:3000] for text in PROSE] + [FOREIGN] * 5

ODD = (
    "",
    " ",
    "\n\n \t\r\n",
    "naive caf\u00e9 cafe\u0301 \ufb01 \u2167 \u00bd",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea emoji",
    "\u4e2d\u6587\u65e5\u672c\u8a9e mixed\u6587with words \u30ab\uff9e",
    "a\x00b\x07c\x7fd\x85e\u200bf\ufeffg\u2028h\xa0i\u3000j\ufffdk\ue000l\u0378m\x1cn",
    "1234567890 12 345 \u0661\u0662 007",
    "don't I'LL we've 'tis ''s  's\xa0's",
    "x" * 150 + " " + "y" * 201 + " " + "z" * 200,
    "\u039f\u0394\u039f\u03a3 \u03a3 \u039f\u03a3.\u0391 \u0130stanbul STRASSE stra\u00dfe \u1e9e",
    "__init__(self, *args) -> None: # foo_bar != FooBar;\r\n\treturn {'a': [1,2]}",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u064b \u0939\u093f\u0928\u094d\u0926 \u0e44\u0e17\u0e22",
    FOREIGN,
)
SPECIAL = (
    "a <|endoftext|> b<|endoftext|><|endoftext|",
    "[CLS] a [SEP][MASK] [PAD] [cls] [UNK][BOS]",
    "<s> a </s><unk><s>\u2581<pad> <CLS>x<SEP> <EOD><MASK><extra_id_0> <extra_id_1><extra_id_10>",
)

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def noise(
    seed: int, count: int, bits: Sequence[str] = (*ODD, *SPECIAL, *FOREIGN.split(), " ", "\n", "the", "A")
) -> list[str]:
    """Return texts of random pieces."""
    rng = random.Random(seed)
    return ["".join(rng.choice(bits) for _ in range(rng.randint(0, 12))) for _ in range(count)]


def gpt2(folder: Path) -> TokenizerSpec:
    save(train_bpe(TRAINING, 1500), folder / "gpt2")
    return TokenizerSpec("GPT2BPETokenizer", vocab_file=str(folder / "gpt2" / "vocab.json"))


def byte_level(folder: Path, name: str = "llama3", normalizer: object = None) -> TokenizerSpec:
    """Llama-3's expression; with a begin-of-sentence token around texts, as that model has."""
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1200, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    from tokenizers import processors

    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]
    )
    return _saved(tokenizer, folder, name)


def word_piece(folder: Path, *, lowercase: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        TRAINING, trainers.WordPieceTrainer(vocab_size=1500, special_tokens=special, show_progress=False)
    )
    vocab = tokenizer.get_vocab()
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in sorted(vocab, key=vocab.__getitem__)))
    return tokenizer


def unigram(folder: Path) -> TokenizerSpec:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(
        TRAINING,
        trainers.UnigramTrainer(
            vocab_size=600, unk_token="<unk>", special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
        ),
    )
    return _saved(tokenizer, folder, "unigram")


def sentence_piece(folder: Path, kind: str = "bpe", **more: object) -> str:
    """Write a model and return its path: BPE with byte fallback as Llama 2, or a Unigram model as T5."""
    import sentencepiece

    lines = [line for text in TRAINING for line in text.splitlines() if line.strip()]
    options: dict[str, object] = {"model_type": kind, "vocab_size": 1200, "minloglevel": 2, "num_threads": 1, **more}
    if kind == "bpe":
        options |= {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
        options.setdefault("required_chars", string.ascii_letters + string.digits + string.punctuation)
        options |= {"split_digits": True, "allow_whitespace_only_pieces": True, "pad_id": -1}
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **options)
    path = folder / f"{kind}.model"
    path.write_bytes(model.getvalue())
    return str(path)


def llama_json(folder: Path, model: str, *, metaspace: bool) -> TokenizerSpec:
    """Write what transformers makes of a sentencepiece BPE, in its older (normalizer) or newer (Metaspace) form."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    vocab = {processor.id_to_piece(number): number for number in range(len(processor))}
    merges = sorted(
        (vocab[piece], piece[:cut], piece[cut:])
        for piece in vocab
        for cut in range(1, len(piece))
        if piece[:cut] in vocab and piece[cut:] in vocab
    )
    tokenizer = Tokenizer(
        models.BPE(vocab, [(a, b) for _, a, b in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return _saved(tokenizer, folder, f"llama-{metaspace}")


def _saved(tokenizer: Tokenizer, folder: Path, name: str) -> TokenizerSpec:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(json.loads(tokenizer.to_str())))
    return TokenizerSpec("HFTokenizer", str(path))
