"""How the next token is chosen."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megads.errors import ConfigError

MANY = 1024
"""Most likely tokens that ``top_p`` looks at first; all are sorted only if their probabilities do not reach it."""


@dataclass(frozen=True)
class Sampling:
    """The settings of one request.

    Filters apply in the order of transformers: penalties, temperature, ``top_k``, ``top_p``, ``min_p``.

    Attributes:
        max_tokens: at most generated.
        min_tokens: before which nothing ends the text.
        temperature: 0: the most likely token (greedy).
        top_k: among so many most likely tokens (ties with the last are kept); 0: all.
        top_p: among the fewest most likely tokens whose probabilities reach it; 1: all.
        top_p_decay: factor of ``top_p`` after every token; 0: none (Megatron-LM).
        top_p_bound: floor of the decayed ``top_p``.
        min_p: without those less likely than ``min_p`` times the most likely one.
        repetition_penalty: divides positive logits of tokens in prompt or output, multiplies negative ones.
        presence_penalty: subtracted from the logits of tokens in the output.
        frequency_penalty: subtracted likewise, once for every occurrence.
        logit_bias: tokens, each with what is added to its logit.
        seed: same seed, same text, whatever else is in the batch; None: another one each time.
        stop: strings that end the text; not part of it unless ``include_stop``.
        stop_token_ids: tokens that end it, besides the tokenizer's end of text.
        ignore_eos: the end of text does not end it.
        logprobs: how many of the most likely tokens are reported with each token; None: no log-probabilities.
        prompt_logprobs: report those of the prompt, too.
        banned_pairs: tokens, each with one that must not follow it.
        skip_special_tokens: the text is without the tokenizer's special tokens.

    Raises:
        ConfigError: a value is out of range.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    top_p_decay: float = 0.0
    top_p_bound: float = 0.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: bool = False
    banned_pairs: tuple[tuple[int, int], ...] = ()
    skip_special_tokens: bool = False

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:  # false for nan, too
                limits = f"from {low:g} to {high:g}" if math.isfinite(high) else f"{low:g} or more"
                raise ConfigError(f"{name}={value:g} is out of range; use {limits}")
        if math.isinf(self.temperature) or not all(math.isfinite(bias) for _, bias in self.logit_bias):
            raise ConfigError("temperature and logit_bias must be finite")
        if self.logprobs is not None and self.logprobs < 0:
            raise ConfigError(f"logprobs={self.logprobs} is out of range; use 0 or more")

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is chosen."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def changes_logits(self) -> bool:
        """Whether a penalty, bias or ban applies."""
        return bool(
            self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
            or self.logit_bias
            or self.banned_pairs
        )

    def top_p_of(self, number: int) -> float:
        """Return ``top_p`` for output token ``number``, from 0."""
        if not self.top_p_decay or self.top_p >= 1:
            return self.top_p
        return max(self.top_p * self.top_p_decay**number, self.top_p_bound)


_RANGES = (
    ("max_tokens", 0, math.inf),
    ("min_tokens", 0, math.inf),
    ("temperature", 0, math.inf),
    ("top_k", 0, math.inf),
    ("top_p", 0, 1),
    ("top_p_decay", 0, 1),
    ("top_p_bound", 0, 1),
    ("min_p", 0, 1),
    ("repetition_penalty", 1e-3, 1e3),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
)


def choose(
    logits: Tensor, samplings: Sequence[Sampling], prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]
) -> Tensor:
    """Return the next token of every row, ``[B]`` int64.

    Args:
        logits: ``[B, V]`` of the real vocabulary; not changed.
        samplings: of every row; each ``seed`` must be set unless it is greedy.
        prompts: tokens of every row's prompt.
        outputs: tokens generated so far.
    """
    rows = [row for row, each in enumerate(samplings) if each.changes_logits]
    if rows:
        logits = logits.clone()
        for row in rows:
            _penalize(logits[row], samplings[row], prompts[row], outputs[row])
    chosen = logits.argmax(dim=-1)
    drawn = [row for row, each in enumerate(samplings) if not each.is_greedy]
    for row in drawn:
        number = len(outputs[row])
        chosen[row] = _draw(logits[row], samplings[row], number)
    return chosen


def _penalize(logits: Tensor, sampling: Sampling, prompt: Sequence[int], output: Sequence[int]) -> None:
    if sampling.repetition_penalty != 1:
        seen = torch.tensor(sorted({*prompt, *output}), device=logits.device)
        values = logits[seen]
        factor = sampling.repetition_penalty
        logits[seen] = torch.where(values > 0, values / factor, values * factor)
    if sampling.presence_penalty or sampling.frequency_penalty:
        for token, count in Counter(output).items():
            logits[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
    if sampling.logit_bias:
        tokens, biases = zip(*sampling.logit_bias, strict=True)
        logits.index_add_(0, torch.tensor(tokens, device=logits.device), logits.new_tensor(biases))
    last = output[-1] if output else prompt[-1] if prompt else -1
    for token, following in sampling.banned_pairs:
        if token == last:
            logits[following] = -torch.inf


def _draw(logits: Tensor, sampling: Sampling, number: int) -> int:
    """Return a token by the inverse of the filtered distribution at one number, which seed and position decide."""
    scores = (logits - logits.max()).double() / sampling.temperature  # finite at the top for any temperature
    if 0 < sampling.top_k < len(scores):
        lowest = scores.topk(sampling.top_k).values[-1]
        scores = scores.masked_fill(scores < lowest, -torch.inf)
    top_p = sampling.top_p_of(number)
    if top_p < 1:
        scores = _keep_top_p(scores, top_p)
    probabilities = scores.softmax(dim=-1)
    if sampling.min_p:
        probabilities = probabilities.where(probabilities >= sampling.min_p * probabilities.max(), 0.0)
    ends = probabilities.cumsum(dim=0)
    target = uniform(sampling.seed or 0, number) * ends[-1]
    token = int(torch.searchsorted(ends, target, right=True))
    possible = probabilities.nonzero()  # none where the model's logits are NaN
    return min(token, int(possible[-1])) if len(possible) else int(logits.argmax())


def _keep_top_p(scores: Tensor, top_p: float) -> Tensor:
    """Return ``scores`` without the tokens behind those whose probabilities reach ``top_p``; one always stays."""
    total = scores.logsumexp(dim=0)
    for count in (min(MANY, len(scores)), len(scores)):
        values, tokens = scores.topk(count)
        before = (values - total).exp().cumsum(dim=0)
        if before[-1] >= top_p or count == len(scores):
            break
    keep = 1 + int((before < top_p).sum())
    kept = torch.full_like(scores, -torch.inf)
    kept[tokens[:keep]] = values[:keep]
    return kept


def uniform(seed: int, number: int) -> float:
    """Return a number in [0, 1) which depends on the seed and the place of the token in the output alone."""
    digest = hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53
