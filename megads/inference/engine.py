"""Continuous batching: every step either takes in new prompts or generates a token for each running request."""

from __future__ import annotations

import hashlib
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from megads.comm.messages import broadcast_value
from megads.data.tokenizers.base import Tokenizer
from megads.errors import ConfigError
from megads.inference.request import Request, TokenScore
from megads.inference.retro.neighbors import NeighborSource
from megads.inference.runner import Runner
from megads.inference.sampling import Sampling, choose
from megads.inference.tokenizer import special_tokens

PREFILL_TOKENS = 4096
"""Tokens of prompts, padding included, that one step takes in; one prompt may be longer."""
SCORED_AT_ONCE = 1 << 24
"""Logits that are looked at together for the log-probabilities of prompts."""


class Engine:
    """Generates text for many requests at a time. All ranks of a model do the same steps with the same requests.

    To make one is collective over all ranks: those of a model must draw the same seeds.

    Args:
        runner: of the model; its slots are the requests that run at a time.
        tokenizer: for text and stop strings; None: tokens only.
        eos: tokens that end a text.
    """

    def __init__(self, runner: Runner, *, tokenizer: Tokenizer | None = None, eos: Sequence[int] = ()):
        self.runner, self.tokenizer, self.eos = runner, tokenizer, tuple(eos)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # by slot
        self._special = {} if tokenizer is None else special_tokens(tokenizer)
        self._count = 0
        self._entropy = secrets.token_hex(16)
        if runner.groups.world is not None:
            self._entropy = f"{broadcast_value(self._entropy)}/{runner.groups.data_rank}"

    def check(self, prompt: Sequence[int], sampling: Sampling) -> None:
        """Refuse a prompt that cannot be continued.

        Raises:
            ConfigError: see :func:`check_prompt`; or a setting names a token that does not exist.
        """
        check_prompt(prompt, self.runner, sampling.max_tokens)
        size = self.runner.vocab_size
        named = [token for token, _ in sampling.logit_bias] + [
            token for pair in sampling.banned_pairs for token in pair
        ]
        if any(not 0 <= token < size for token in named):
            raise ConfigError(f"logit_bias names a token outside the vocabulary of {size}")

    def add(self, prompt: Sequence[int], sampling: Sampling, neighbors: NeighborSource | None = None) -> Request:
        """Queue a request; it runs when a slot is free.

        Args:
            neighbors: for a model that looks at neighbours of the chunks of its text.

        Raises:
            ConfigError: the prompt is empty or does not fit the context, or a token is outside the vocabulary.
        """
        self.check(prompt, sampling)
        if sampling.seed is None:
            digest = hashlib.blake2b(f"{self._entropy}/{self._count}".encode(), digest_size=8).digest()
            sampling = replace(sampling, seed=int.from_bytes(digest, "little"))
        if sampling.skip_special_tokens:
            # The text has none of them, so one of these that is to stop it is looked for as a token.
            ends = tuple(token for token, name in self._special.items() if name in sampling.stop)
            sampling = replace(sampling, stop_token_ids=(*sampling.stop_token_ids, *ends))
        hidden = self._special if sampling.skip_special_tokens else ()
        source, begin = self.runner.parts_of(prompt)
        request = Request(list(begin), sampling, self._count, hidden=hidden, source=list(source), neighbors=neighbors)
        self._count += 1
        self.waiting.append(request)
        return request

    @torch.inference_mode()  # memory that grew in a step can be changed in no other mode
    def abort(self, request: Request) -> None:
        """Stop a request; nothing happens to one that is finished."""
        if request.finish_reason:
            return
        request.finish_reason = "abort"
        if request in self.waiting:
            self.waiting.remove(request)
        else:
            self._release()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.waiting or self.running)

    def run(self) -> Iterator[Request]:
        """Step until all requests are finished, and yield each as soon as it is."""
        while not self.is_idle:
            yield from self.step()

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Take in new prompts if there are slots for them, else generate a token for every running request.

        Returns:
            the requests that this step finished.
        """
        new = self._admitted()
        if new:
            prompts, texts = [each.prompt for each in new], [each.source for each in new]
            looks = [each.neighbors for each in new]
            more = {"neighbors": looks} if any(each is not None for each in looks) else {}
            hidden = self.runner.prefill(prompts, len(self.running), texts, **more)
            self.running += new
            for request, states in zip(new, hidden, strict=True):
                if request.sampling.prompt_logprobs and not request.source:
                    self._score_prompt(request, states)
            lasts = torch.tensor([len(each.prompt) - 1 for each in new], device=hidden.device)
            self._take(new, hidden[torch.arange(len(new), device=hidden.device), lasts])
        elif self.running:
            last = [each.output[-1] for each in self.running]
            self._take(self.running, self.runner.decode(last, [each.length - 1 for each in self.running]))
        finished = [each for each in self.running if each.finish_reason]
        self._release()
        return finished

    def _admitted(self) -> list[Request]:
        new: list[Request] = []
        longest = 0
        while self.waiting and len(self.running) + len(new) < self.runner.num_slots:
            longest = max(longest, len(self.waiting[0].source) + len(self.waiting[0].prompt))
            if new and longest * (len(new) + 1) > PREFILL_TOKENS:
                break
            new.append(self.waiting.popleft())
        return new

    def _take(self, batch: Sequence[Request], hidden: Tensor) -> None:
        """Choose the next token of every request from ``[B, H]``, and give it to the request."""
        top = min(self.runner.vocab_size, max((each.sampling.logprobs or 0 for each in batch), default=0))
        is_scored = any(each.sampling.logprobs is not None for each in batch)
        found = torch.zeros(len(batch), 1 + is_scored * (1 + 2 * top), dtype=torch.float64)
        if self.runner.is_last_stage:
            logits = self.runner.logits(hidden)
            samplings = [each.sampling for each in batch]
            tokens = choose(logits, samplings, [each.prompt for each in batch], [each.output for each in batch])
            found[:, 0] = tokens
            if is_scored:
                found[:, 1:] = _scores(logits, tokens, top)
        for request, row in zip(batch, self.runner.share(found).tolist(), strict=True):
            if request.sampling.max_tokens == 0:
                request.finish_reason = "length"
                continue
            token = int(row[0])
            if request.sampling.logprobs is not None:
                request.scores.append(_score(token, row[1:], request.sampling.logprobs))
            request.take(token, self.tokenizer, self.eos, self.runner.context)

    def _score_prompt(self, request: Request, hidden: Tensor) -> None:
        """Note the log-probabilities of a prompt's tokens from the second on, from ``[S, H]``."""
        count, top = len(request.prompt) - 1, min(self.runner.vocab_size, request.sampling.logprobs or 0)
        found = torch.zeros(count, 1 + 2 * top, dtype=torch.float64)
        if self.runner.is_last_stage:
            tokens = torch.tensor(request.prompt[1:], device=hidden.device)
            step = max(1, SCORED_AT_ONCE // self.runner.vocab_size)
            for first in range(0, count, step):
                part = slice(first, min(count, first + step))
                found[part] = _scores(self.runner.logits(hidden[part]), tokens[part], top)
        rows = self.runner.share(found).tolist()
        request.prompt_scores = [TokenScore(request.prompt[0], None)]
        request.prompt_scores += [_score(token, row, top) for token, row in zip(request.prompt[1:], rows, strict=True)]

    def _release(self) -> None:
        """Give the slots of finished requests to running ones, so that those in use stay the first ones."""
        slot = 0
        while slot < len(self.running):
            if not self.running[slot].finish_reason:
                slot += 1
                continue
            last = self.running.pop()
            if slot < len(self.running):
                if not last.finish_reason:
                    self.runner.cache.move(len(self.running), slot, last.length)
                self.running[slot] = last


def check_prompt(prompt: Sequence[int], runner: Runner, more: int) -> None:
    """Refuse a prompt that cannot be continued.

    Args:
        prompt: tokens.
        runner: of the model.
        more: tokens to generate at most.

    Raises:
        ConfigError: it is empty or does not fit the context, or a token is outside the vocabulary.
    """
    if not prompt:
        raise ConfigError("the prompt has no token; give a text, or begin with the end-of-text token")
    if not all(0 <= token < runner.vocab_size for token in prompt):
        raise ConfigError(f"the prompt has a token outside the vocabulary of {runner.vocab_size}")
    source, begin = runner.parts_of(prompt)
    room = runner.context - (0 if source else bool(more))
    if len(source or begin) > room:
        raise ConfigError(
            f"the prompt has {len(prompt)} tokens and the model a context of {runner.context}; use at most {room}"
        )


def _scores(logits: Tensor, tokens: Tensor, top: int) -> Tensor:
    """Return ``[N, 1 + 2 top]``: the log-probability of each token, then the most likely tokens, then theirs."""
    scores = logits.log_softmax(dim=-1)
    parts = [scores.gather(1, tokens.unsqueeze(1)).double()]
    if top:
        values, best = scores.topk(top)
        parts += [best.double(), values.double()]
    return torch.cat(parts, dim=1)


def _score(token: int, row: Sequence[float], top: int) -> TokenScore:
    """Read what :func:`_scores` wrote for a token; the row may have more tops than asked for."""
    most = (len(row) - 1) // 2
    return TokenScore(token, row[0], tuple((int(row[1 + at]), row[1 + most + at]) for at in range(min(top, most))))
