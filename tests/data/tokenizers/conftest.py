from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.train import train_bpe
from tests.data.factory import make_run
from tests.data.tokenizers import vocabularies
from tests.data.tokenizers.vocabularies import FOREIGN, PROSE


@pytest.fixture(scope="session")
def specs(tmp_path_factory) -> dict[str, TokenizerSpec]:
    """One tokenizer of every kind."""
    folder: Path = tmp_path_factory.mktemp("vocabularies")
    bpe, unigram = vocabularies.sentence_piece(folder), vocabularies.sentence_piece(folder, "unigram", pad_id=3)
    wordpiece = vocabularies.word_piece(folder)
    wordpiece.save(str(folder / "wordpiece.json"))
    vocab = str(folder / "vocab.txt")
    return {
        "gpt2": vocabularies.gpt2(folder),
        "gpt2-json": TokenizerSpec("HFTokenizer", str(folder / "gpt2")),
        "llama3-json": vocabularies.byte_level(folder),
        "wordpiece-json": TokenizerSpec("PretrainedFromHF", str(folder / "wordpiece.json")),
        "unigram-json": vocabularies.unigram(folder),
        "llama2-json": vocabularies.llama_json(folder, bpe, metaspace=False),
        "metaspace-json": vocabularies.llama_json(folder, bpe, metaspace=True),
        "bert-lower": TokenizerSpec("BertWordPieceLowerCase", vocab_file=vocab, extra_ids=3),
        "bert-case": TokenizerSpec("BertWordPieceCase", vocab_file=vocab),
        "sp": TokenizerSpec("SentencePieceTokenizer", bpe, extra_ids=12),
        "gpt-sp": TokenizerSpec("GPTSentencePieceTokenizer", bpe),
        "llama2": TokenizerSpec("Llama2Tokenizer", bpe),
        "sp-unigram": TokenizerSpec("SentencePieceTokenizer", unigram),
        "gpt-sp-unigram": TokenizerSpec("GPTSentencePieceTokenizer", unigram),
        "null": TokenizerSpec("NullTokenizer", vocab_size=100),
    }


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    train_bpe(["def f(x): return x\n"] * 20, 300).save(str(path / "tokenizer.json"))
    return path


def run_with(path: object, **data: object):
    return make_run(
        model={"vocab_size": 0}, data={"tokenizer_type": "HFTokenizer", "tokenizer_model": str(path)} | data
    )


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> list[str]:
    """Two files, one of them compressed; two keys, one with lists."""
    folder: Path = tmp_path_factory.mktemp("corpus")
    rows = [json.dumps({"text": text[:2000], "title": [f"title {i}", FOREIGN]}) for i, text in enumerate(PROSE)]
    (folder / "a.jsonl").write_text("\n".join([*rows[:20], ""]))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(rows[20:]).encode()))
    return [str(folder / "a.jsonl"), str(folder / "b.jsonl.gz")]
