"""What BERT and T5 need of a tokenizer: which pieces continue a word, and the tokens that stand for something."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from megads.config.schema import RunConfig
from megads.data.samples.masked.masking import WordPieces
from megads.data.tokenizers.base import Specials, Tokenizer
from megads.data.tokenizers.build import load_tokenizer
from megads.data.tokenizers.types.bert import WordPieceTokenizer
from megads.data.tokenizers.types.huggingface import HFTokenizer
from megads.data.tokenizers.types.sentencepiece import SentencePieceTokenizer
from megads.errors import ConfigError
from megads.families.table import FAMILIES
from megads.text.plural import listed

CONTINUES = "##"
"""What a piece begins with that continues a word. Vocabularies without it have a word in each piece, as in Megatron."""

NEEDED = {"bert": ("cls", "sep", "mask", "pad"), "t5": ("pad", "eos")}
_NONE = -1


def load_word_pieces(run: RunConfig) -> WordPieces | None:
    """Return what the samples of a run need of its tokenizer; None if its family reads plain tokens.

    Raises:
        MegadsError: the tokenizer cannot be loaded, or lacks a token.
    """
    kind = FAMILIES[run.model.family].samples
    if not FAMILIES[run.model.family].reads_sentences:
        return None
    if run.data.tokenizer_type == "NullTokenizer":
        raise ConfigError(
            f"TOKENIZER_TYPE=NullTokenizer has no words to hide; MODEL_FAMILY={run.model.family} needs the tokenizer "
            "that the data was made with"
        )
    return word_pieces(load_tokenizer(run), kind, run.data.tokenizer_type)


def word_pieces(tokenizer: Tokenizer, kind: str, name: str) -> WordPieces:
    """Return the pieces of a tokenizer called ``name``, for the samples of ``kind``, "bert" or "t5".

    A T5 whose vocabulary has no token for the beginning of a text begins with the padding, as T5's own.

    Raises:
        ConfigError: a token is missing.
    """
    specials = tokenizer.specials
    missing = [each for each in NEEDED[kind] if getattr(specials, each) is None]
    if missing:
        raise ConfigError(
            f"TOKENIZER_TYPE={name} has no {listed(missing, 'or')} token, which MODEL_FAMILY={kind} needs; use "
            "BertWordPieceLowerCase or BertWordPieceCase with a VOCAB_FILE"
        )
    if kind == "t5" and not specials.extra:
        raise ConfigError(
            f"TOKENIZER_TYPE={name} has no tokens <extra_id_N> to put in place of spans; use VOCAB_EXTRA_IDS=100"
        )
    vocab = _vocab(tokenizer)
    continues = np.zeros(tokenizer.vocab_size, np.bool_)
    continues[[number for token, number in vocab.items() if token.startswith(CONTINUES)]] = True
    cls, sep, mask, pad, eos = (
        _NONE if each is None else each
        for each in (specials.cls, specials.sep, specials.mask, specials.pad, specials.eos)
    )
    ids = np.array(list(vocab.values()), np.int64)
    first = first_of_decoder(specials)
    return WordPieces(ids, continues, cls, sep, mask, pad, _NONE if first is None else first, eos, specials.extra)


def first_of_decoder(specials: Specials) -> int | None:
    """Return the token with which the decoder of a T5 begins: that of a text's beginning, else padding."""
    return specials.pad if specials.bos is None else specials.bos


def _vocab(tokenizer: Tokenizer) -> Mapping[str, int]:
    """Return all tokens and their ids, in the order in which Megatron draws a random one of them."""
    if isinstance(tokenizer, WordPieceTokenizer):
        return tokenizer.vocab
    if isinstance(tokenizer, HFTokenizer):
        return dict(sorted(tokenizer.inner.get_vocab().items(), key=lambda item: item[1]))
    if isinstance(tokenizer, SentencePieceTokenizer):
        processor = tokenizer.processor
        return {processor.id_to_piece(number): number for number in range(len(processor))} | dict(tokenizer.found)
    raise ConfigError(f"{type(tokenizer).__name__} has no words to hide")
