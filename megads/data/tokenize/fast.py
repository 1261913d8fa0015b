"""Chooses the fastest library that gives exactly the ids of the original.

A library is taken for a tokenizer only after it has encoded a sample like the original, document by document. The
sample is what the user gives and what :mod:`megads.data.tokenize.proof` adds.

Rough speeds in MB of text a second, seen on a busy machine with two cores (prose, program code and translations;
tokenizers 0.23.3, fastokens 0.3.5, kitoken 0.11.1, sentencepiece 0.2.3). They set the order of candidates and no more::

    byte-level BPE      fastokens 7-110 over the first few MB, 170-520 when warm; kitoken 11-25, tokenizers 2-3
    Llama 2 as .json    fastokens 20-30 over the first few MB, tokenizers 2-3
    WordPiece           words 10-15, kitoken 4-12 (and differs), tokenizers 2-3
    BPE as .model       kitoken 10-19, sentencepiece 4-8
    Unigram as .model   sentencepiece 19-31, kitoken 9-13 (and differs)
    Unigram as .json    tokenizers 2-3, kitoken 9-10 (and differs)

tiktoken is no candidate: it joins any two pieces whose sum is in the vocabulary, a merges list only those it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from megads.data.tokenize import encoders as libraries
from megads.data.tokenize.base import Encoder, Tokenizer
from megads.data.tokenize.encoders import BatchEncoder, UnfitError
from megads.data.tokenize.proof import adversarial
from megads.data.tokenize.sentence import SentencePieceTokenizer
from megads.errors import ConfigError

ENCODERS: dict[str, Callable[[Tokenizer], BatchEncoder]] = {
    "fastokens": libraries.fastokens,
    "words": libraries.words,
    "kitoken": libraries.kitoken,
    "sentencepiece": libraries.sentencepiece,
    "tokenizers": libraries.hugging_face,
    "original": libraries.original,
}
"""Every library by the name ``--encoder`` takes, the fastest first."""

ORIGINALS = ("sentencepiece", "tokenizers", "original")
"""The libraries that tokenizers themselves use; these are not compared with themselves."""

MOST_PROOF = 400_000
"""Characters of the user's sample that are compared; the rest is passed over."""


@dataclass(frozen=True)
class Choice:
    """The library that was taken, and why not a faster one."""

    encoder: Encoder
    name: str  # as --encoder takes it; make_encoder(tokenizer, name) makes the same in another process
    reason: str  # one line
    frees_gil: bool  # whether threads of one process can encode at the same time


def encoders() -> tuple[str, ...]:
    """Return the names that ``--encoder`` takes."""
    return ("auto", *ENCODERS)


def make_encoder(tokenizer: Tokenizer, name: str) -> BatchEncoder:
    """Return the encoder ``name``, which :func:`choose_encoder` has chosen, without proving it again.

    Raises:
        ConfigError: the name is unknown, its package is missing, or it can not do this tokenizer.
    """
    try:
        return _make(tokenizer, name)
    except UnfitError as error:
        raise ConfigError(f"--encoder {name}: {error}; use --encoder auto") from None


def choose_encoder(tokenizer: Tokenizer, sample: Sequence[str], *, wanted: str = "auto") -> Choice:
    """Return the fastest encoder that gives the ids of ``tokenizer.encode`` on the sample.

    Args:
        tokenizer: the original.
        sample: texts of the data to come.
        wanted: one of :func:`encoders`; another than ``auto`` is taken or refused.

    Raises:
        ConfigError: the library asked for is unknown or missing, or gives other ids.
    """
    if wanted != "auto":
        encoder = make_encoder(tokenizer, wanted)
        problem = "" if wanted in ORIGINALS else _differs(encoder, _proof(tokenizer, sample))
        if problem:
            raise ConfigError(f"--encoder {wanted}: {encoder.name} {problem}; use --encoder auto")
        return Choice(encoder, wanted, f"{encoder.name}, as asked for", encoder.frees_gil)
    proof: list[tuple[str, list[int]]] = []
    against = []
    for name in _order(tokenizer):
        try:
            encoder = _make(tokenizer, name)
        except UnfitError as error:
            against.append(f"{name}: {error}")
            continue
        except ConfigError as error:
            against.append(str(error))
            continue
        if name in ORIGINALS:
            break
        proof = proof or _proof(tokenizer, sample)
        problem = _differs(encoder, proof)
        if not problem:
            return Choice(encoder, name, _taken(encoder, proof), encoder.frees_gil)
        against.append(f"{encoder.name} {problem}")
    because = f" ({'; '.join(against)})" if against else ""
    return Choice(encoder, name, f"{encoder.name}, the original library{because}", encoder.frees_gil)


def _make(tokenizer: Tokenizer, name: str) -> BatchEncoder:
    if name not in ENCODERS:
        raise ConfigError(f"--encoder {name}: unknown; one of {', '.join(encoders())}")
    try:
        return ENCODERS[name](tokenizer)
    except ImportError:
        raise ConfigError(f"{name} is not installed: pip install {name}") from None


def _order(tokenizer: Tokenizer) -> Iterable[str]:
    """Yield the names to try, the fastest for this kind first; the last one always works."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        # The original is faster than kitoken for Unigram models, which have no merges to work off.
        return ("sentencepiece",) if _is_unigram(tokenizer) else ("kitoken", "sentencepiece")
    if hasattr(tokenizer, "inner"):
        return ("fastokens", "words", "kitoken", "tokenizers")
    return ("words", "original")


def _is_unigram(tokenizer: SentencePieceTokenizer) -> bool:
    """Tell by the scores: those of a BPE model count down from zero in whole numbers."""
    score = tokenizer.processor.get_score
    return any(score(number) % 1 for number in range(tokenizer.processor.vocab_size()))


def _proof(tokenizer: Tokenizer, sample: Sequence[str]) -> list[tuple[str, list[int]]]:
    texts = []
    left = MOST_PROOF
    for text in sample:
        if left <= 0:
            break
        texts.append(text[:left])
        left -= len(text)
    return [(text, tokenizer.encode(text)) for text in [*texts, *adversarial(tokenizer)]]


def _differs(encoder: BatchEncoder, proof: list[tuple[str, list[int]]]) -> str:
    """Return how the encoder fails the proof; empty: it does not."""
    try:
        ids, offsets = encoder.encode_batch([text for text, _ in proof])
    except Exception as error:
        return f"fails on a text of the sample ({str(error)[:80]})"
    for place, (text, expected) in enumerate(proof):
        found = ids[offsets[place] : offsets[place + 1]].tolist()
        if found != expected:
            at = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), 0)
            return f"gives other ids from token {at} of {text[:40]!a}"
    return ""


def _taken(encoder: BatchEncoder, proof: list[tuple[str, list[int]]]) -> str:
    return f"{encoder.name}, proved equal on {len(proof)} texts of {sum(len(text) for text, _ in proof)} characters"
