"""Chooses the fastest library that gives exactly the ids of the original.

A library is taken for a tokenizer only after it has encoded a sample like the original, document by document. The
sample is what the user gives and what :mod:`megads.data.tokenizers.encoders.proof` adds.

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

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from megads.data.tokenizers.base import Tokenizer
from megads.data.tokenizers.encoders import libraries
from megads.data.tokenizers.encoders.libraries import BatchEncoder, UnfitError
from megads.data.tokenizers.encoders.proof import Outcome, adversarial, keep_outcome, kept_outcome
from megads.data.tokenizers.types.sentencepiece import SentencePieceTokenizer
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

SPEEDUP = {"fastokens": 50, "kitoken": 2}
"""How many times as fast as the original a library is, for the kind of tokenizer where it is tried first."""

Proof = list[tuple[str, list[int]]]
"""Texts, and the ids that the original gives."""


@dataclass(frozen=True)
class Choice:
    """The library that was taken, and why not a faster one."""

    encoder: BatchEncoder
    name: str  # as --encoder takes it; make_encoder(tokenizer, name) makes the same in another process
    reason: str  # one line


def make_encoder(tokenizer: Tokenizer, name: str) -> BatchEncoder:
    """Return the encoder ``name``, which :func:`choose_encoder` has chosen, without proving it again.

    Raises:
        ConfigError: the name is unknown, its package is missing, or it cannot do this tokenizer.
    """
    try:
        return _make(tokenizer, name)
    except UnfitError as error:
        raise ConfigError(f"--encoder {name}: {error}; use --encoder auto") from None


def choose_encoder(
    tokenizer: Tokenizer, sample: Sequence[str], *, wanted: str = "auto", proofs: Path | None = None
) -> Choice:
    """Return the fastest encoder that gives the ids of ``tokenizer.encode`` on the sample.

    Args:
        tokenizer: the original.
        sample: texts of the data to come.
        wanted: ``auto`` or one of :data:`ENCODERS`, which is taken or refused.
        proofs: folder that keeps what came out of the built-in sample; None: it is encoded every time.

    Raises:
        ConfigError: the library asked for is unknown or missing, or gives other ids.
    """
    if wanted != "auto":
        encoder = make_encoder(tokenizer, wanted)
        problem = "" if wanted in ORIGINALS else _Trial(tokenizer, sample, proofs).problem(encoder)[0]
        if problem:
            raise ConfigError(f"--encoder {wanted}: {encoder.name} {problem}; use --encoder auto")
        return Choice(encoder, wanted, f"{encoder.name}, as requested")
    trial = _Trial(tokenizer, sample, proofs)
    against = []
    for name in _order(tokenizer):
        try:
            encoder = _make(tokenizer, name)
        except (UnfitError, ConfigError) as error:
            against.append(f"{name}: {error}" if isinstance(error, UnfitError) else str(error))
            continue
        if name in ORIGINALS:
            break
        problem, proved = trial.problem(encoder)
        if not problem:
            return Choice(encoder, name, f"{encoder.name}, {proved}")
        against.append(f"{encoder.name} {problem}")
    because = f" ({'; '.join(against)})" if against else ""
    return Choice(encoder, name, f"{encoder.name}, the original library{because}")


def _make(tokenizer: Tokenizer, name: str) -> BatchEncoder:
    if name not in ENCODERS:
        raise ConfigError(f"--encoder {name}: unknown; one of {', '.join(('auto', *ENCODERS))}")
    try:
        return ENCODERS[name](tokenizer)
    except ImportError:
        faster = f", and is about {SPEEDUP[name]} times as fast" if name in SPEEDUP else ""
        raise ConfigError(f"{name} is not installed{faster}: pip install {name}") from None


def _order(tokenizer: Tokenizer) -> Iterable[str]:
    """Yield the names to try, the fastest for this kind first; the last one always works."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        # The original is faster than kitoken for Unigram models, which have no merges to work off.
        return ("sentencepiece",) if _is_unigram(tokenizer) else ("kitoken", "sentencepiece")
    if hasattr(tokenizer, "inner"):
        return ("fastokens", "words", "kitoken", "tokenizers")
    return ("words", "original")


def _is_unigram(tokenizer: SentencePieceTokenizer) -> bool:
    """Judge by the scores: those of a BPE model count down from zero in whole numbers."""
    score = tokenizer.processor.get_score
    return any(score(number) % 1 for number in range(tokenizer.processor.vocab_size()))


class _Trial:
    """Compares libraries with the original on the user's texts and on the built-in sample."""

    def __init__(self, tokenizer: Tokenizer, sample: Sequence[str], proofs: Path | None):
        self._tokenizer, self._sample, self._proofs = tokenizer, sample, proofs

    def problem(self, encoder: BatchEncoder) -> tuple[str, str]:
        """Return how the encoder fails, empty: it does not; and on what it was proved."""
        own = _compare(encoder, self._own)
        if own.problem:
            return own.problem, ""
        kept = kept_outcome(self._proofs, self._tokenizer, encoder.name)
        outcome = kept or _compare(encoder, self._built_in)
        # An exception may be of the moment (no memory, no thread left): only ids decide for later starts.
        if kept is None and not outcome.problem.startswith(_FAILS):
            keep_outcome(self._proofs, self._tokenizer, encoder.name, outcome)
        texts, characters = own.texts + outcome.texts, own.characters + outcome.characters
        proved = f"proved equal on {texts} texts of {characters} characters"
        return outcome.problem, f"{proved}{', most of them at an earlier start' if kept else ''}"

    @functools.cached_property
    def _own(self) -> Proof:
        return _encoded(self._tokenizer, self._sample)

    @functools.cached_property
    def _built_in(self) -> Proof:
        return _encoded(self._tokenizer, adversarial(self._tokenizer))


def _encoded(tokenizer: Tokenizer, texts: Iterable[str]) -> Proof:
    return [(text, tokenizer.encode(text)) for text in texts]


def _compare(encoder: BatchEncoder, proof: Proof) -> Outcome:
    return Outcome(_difference(encoder, proof), len(proof), sum(len(text) for text, _ in proof))


_FAILS = "fails on a text of the sample"


def _difference(encoder: BatchEncoder, proof: Proof) -> str:
    """Return how the encoder fails the proof; empty: it does not."""
    try:
        ids, offsets = encoder.encode_batch([text for text, _ in proof])
    except Exception as error:
        return f"{_FAILS} ({str(error)[:80]})"
    for place, (text, expected) in enumerate(proof):
        found = ids[offsets[place] : offsets[place + 1]].tolist()
        if found != expected:
            at = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), 0)
            return f"gives different ids from token {at} of {text[:40]!a}"
    return ""
