"""Answers in the form of OpenAI's API."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from megads.data.tokenizers.base import Tokenizer
from megads.inference.request import TokenScore

FINISH = {"stop": "stop", "length": "length", "abort": "stop"}


class Answer:
    """What all parts of an answer share.

    Args:
        kind: ``text_completion`` or ``chat.completion``.
        model: name of the model.
    """

    def __init__(self, kind: str, model: str):
        prefix = "cmpl" if kind == "text_completion" else "chatcmpl"
        self.head = {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}

    def whole(self, choices: Sequence[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        """Return the whole answer."""
        return {**self.head, "choices": list(choices), "usage": usage}

    def chunk(self, choice: dict[str, Any] | None, usage: dict[str, int] | None = None) -> dict[str, Any]:
        """Return a part of a stream."""
        kind = str(self.head["object"])
        kind = kind if kind == "text_completion" else "chat.completion.chunk"
        found = {**self.head, "object": kind, "choices": [] if choice is None else [choice]}
        return found if usage is None else {**found, "usage": usage}


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Return the numbers of tokens."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def completion_logprobs(
    scores: Sequence[TokenScore], tokenizer: Tokenizer, *, as_ids: bool, offset: int = 0
) -> dict[str, list[Any]]:
    """Return ``logprobs`` of a completion: four lists with an entry for every token.

    ``top_logprobs`` always has the token itself. Of several tokens with the same text it has the most likely one, so
    that its maximum is that of the tokens.
    """
    texts = [_name(score.token, tokenizer, as_ids=as_ids) for score in scores]
    offsets, place = [], offset
    for score in scores:
        offsets.append(place)
        place += len(tokenizer.decode([score.token]))
    return {
        "tokens": texts,
        "token_logprobs": [score.logprob for score in scores],
        "top_logprobs": [_top(score, text, tokenizer, as_ids) for score, text in zip(scores, texts, strict=True)],
        "text_offset": offsets,
    }


def _top(score: TokenScore, text: str, tokenizer: Tokenizer, as_ids: bool) -> dict[str, float] | None:
    if score.logprob is None:
        return None
    found = {text: score.logprob}
    for token, logprob in score.top:
        name = _name(token, tokenizer, as_ids=as_ids)
        found[name] = max(logprob, found.get(name, logprob))
    return found


def _name(token: int, tokenizer: Tokenizer, *, as_ids: bool) -> str:
    return f"token_id:{token}" if as_ids else tokenizer.decode([token])


def chat_logprobs(scores: Sequence[TokenScore], tokenizer: Tokenizer, *, as_ids: bool) -> dict[str, Any]:
    """Return ``logprobs`` of a chat completion."""

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        text = tokenizer.decode([token])
        name = _name(token, tokenizer, as_ids=as_ids)
        return {"token": name, "logprob": logprob, "bytes": list(text.encode())}

    content = [
        {**entry(each.token, each.logprob), "top_logprobs": [entry(*top) for top in each.top]} for each in scores
    ]
    return {"content": content, "refusal": None}
