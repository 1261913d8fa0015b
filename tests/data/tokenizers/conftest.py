from __future__ import annotations

from pathlib import Path

import pytest

from megads.data.tokenizers.base import TokenizerSpec
from tests.data.tokenizers import vocabularies


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
