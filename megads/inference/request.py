"""One sequence that is being generated, and what came of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from megads.data.tokenizers.base import Tokenizer
from megads.inference.retro.neighbors import NeighborSource
from megads.inference.sampling import Sampling

UNFINISHED = "\ufffd"
"""What a tokenizer gives for the first bytes of a character whose others are still to come."""
BEFORE = 4
"""Tokens that are decoded once more with the next ones."""


@dataclass(frozen=True)
class TokenScore:
    """A token with its log-probability in nats, of the model's own distribution (temperature 1, no filter).

    Attributes:
        token: number in the vocabulary.
        logprob: of it; None for the first token of a prompt.
        top: the most likely tokens and theirs, best first; ``token`` is among them or comes last.
    """

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class Request:
    """A prompt, how to continue it, and its output so far.

    Attributes:
        prompt: tokens that the output continues, at least one.
        sampling: with a seed, unless it is greedy.
        number: of the request in its engine.
        output: tokens generated.
        text: of the output, without what stopped it; it only grows until the request is finished.
        prompt_scores: of the prompt's tokens, if asked for.
        scores: of the output's tokens, if asked for.
        finish_reason: ``stop``, ``length`` or ``abort``; empty: it is still running.
        hidden: tokens that the text is without.
        stop_reason: the string or token that stopped it; None: the end of text, or it was not stopped.
        source: tokens that an encoder reads; ``prompt`` is what its decoder begins with, and no text. Else empty.
        neighbors: where a model that looks at neighbours of its chunks has them from; None: it has none.
    """

    prompt: Sequence[int]
    sampling: Sampling
    number: int = -1
    output: list[int] = field(default_factory=list)
    text: str = ""
    prompt_scores: list[TokenScore] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    finish_reason: str = ""
    stop_reason: str | int | None = None
    hidden: Collection[int] = ()
    source: Sequence[int] = ()
    neighbors: NeighborSource | None = None
    _decoded: int = 0  # tokens whose text is complete
    _text: str = ""  # of those tokens
    _passed: int = 0  # characters of it in which nothing may stop

    @property
    def length(self) -> int:
        """Tokens of prompt and output."""
        return len(self.prompt) + len(self.output)

    def take(self, token: int, tokenizer: Tokenizer | None, eos: Sequence[int], context: int) -> None:
        """Add the token that was chosen, and finish if it ends the text.

        Args:
            token: the one that was chosen.
            tokenizer: for the text; None: there is none, and no stop strings.
            eos: tokens that end a text.
            context: most tokens of a sequence.
        """
        sampling = self.sampling
        self.output.append(token)
        may_stop = len(self.output) > sampling.min_tokens
        is_eos = token in eos and not sampling.ignore_eos
        is_stop_token = token in sampling.stop_token_ids
        if may_stop and (is_eos or is_stop_token):
            self.finish_reason, self.stop_reason = "stop", token if is_stop_token else None
        if tokenizer is not None:
            is_ended = bool(self.finish_reason)
            self._extend_text(tokenizer, self.output[:-1] if is_ended else self.output, is_last=is_ended)
            if not may_stop:
                self._passed = len(self._text)
            elif not self.finish_reason:
                self._look_for_stop_string()
        if not self.finish_reason and (len(self.output) >= sampling.max_tokens or self.length >= context):
            self.finish_reason = "length"
        if self.finish_reason == "length" and tokenizer is not None:
            self._extend_text(tokenizer, self.output, is_last=True)

    def _extend_text(self, tokenizer: Tokenizer, tokens: Sequence[int], *, is_last: bool) -> None:
        """Decode the tokens of the output whose characters are complete; with ``is_last`` all."""
        if self.hidden:
            tokens = [each for each in tokens if each not in self.hidden]
        # Tokenizers write the first token of a text in another way, so some that are known come before.
        before = [*(() if self.source else self.prompt[-BEFORE:]), *tokens[: self._decoded]][-BEFORE:]
        known, whole = tokenizer.decode(before), tokenizer.decode([*before, *tokens[self._decoded :]])
        if whole.endswith(UNFINISHED) and not is_last:
            return
        self._text += whole[len(known if whole.startswith(known) else known.rstrip(UNFINISHED)) :]
        self._decoded = len(tokens)
        self.text = self._text

    def _look_for_stop_string(self) -> None:
        places = [
            (self._text.find(stop, max(0, self._passed + 1 - len(stop))), stop) for stop in self.sampling.stop if stop
        ]
        found = sorted((place, stop) for place, stop in places if place >= 0)
        if found:
            place, stop = found[0]
            self.text = self._text[: place + len(stop)] if self.sampling.include_stop else self._text[:place]
            self.finish_reason, self.stop_reason = "stop", stop

    @property
    def settled_text(self) -> str:
        """The part of ``text`` that later tokens cannot take back: not the beginning of a stop string."""
        if self.finish_reason:
            return self.text
        longest = max((_overlap(self.text, stop) for stop in self.sampling.stop), default=0)
        return self.text[: len(self.text) - longest]


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of ``text`` begin ``stop``."""
    return next((count for count in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:count])), 0)
