"""What a BERT puts in the place of masks: the most likely tokens of each, by its masked-LM head."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from megads.comm.messages import gather_values
from megads.data.tokenizers.base import Tokenizer
from megads.data.tokenizers.word_pieces import CONTINUES
from megads.errors import ConfigError
from megads.inference.generate import Prompt
from megads.inference.session import Session
from megads.inference.tokenizer import encode_named, name_of
from megads.storage.reading import parse_json

TOP = 5
"""Tokens of each mask, as transformers' pipeline gives them."""
Found = list[list[tuple[int, float]]]
"""Of each mask the most likely tokens with their log-probabilities, best first."""


def tokens_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a text with masks, between those that stand at its beginning and end in training.

    Raises:
        ConfigError: the tokenizer has no mask, or the text has none.
    """
    specials = tokenizer.specials
    cls, sep, mask = specials.cls, specials.sep, specials.mask
    if cls is None or sep is None or mask is None:
        raise ConfigError("the tokenizer has no [CLS], [SEP] and [MASK]; pass the model's own with --tokenizer")
    named = {name_of(tokenizer, token).strip(): token for token in (mask, sep)}
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError("the prompt is not UTF-8") from None
    tokens = encode_named(tokenizer, text, named)
    tokens = [*([] if tokens[:1] == [cls] else [cls]), *tokens, *([] if tokens[-1:] == [sep] else [sep])]
    name = next(iter(named))
    if mask not in tokens:
        raise ConfigError(f"the prompt has no {name} to fill")
    if tokens.count(mask) != text.count(name):
        raise ConfigError(f"the prompt has {text.count(name)} {name}, and its tokens {tokens.count(mask)}")
    return tokens


def fill_masks(
    session: Session,
    prompts: Sequence[Prompt],
    top: int = TOP,
    batch: int = 16,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[dict[str, Any]]:
    """Return a record for every prompt, in order, on rank 0; elsewhere nothing. All ranks call it.

    A record has ``id``, ``prompt``, ``masks`` (of each mask its most likely tokens: number, text, probability and
    log-probability) and ``all_text``, the prompt with the most likely one in each mask.

    Args:
        session: a BERT; each of its replicas takes its share of the prompts.
        prompts: the same on every rank; one may have a ``top_k`` of its own, and nothing else.
        top: tokens of each mask.
        batch: prompts at a time, on every replica.
        progress: called on rank 0 with how many are finished, and of how many.

    Raises:
        ConfigError: a prompt has no mask or does not fit the context; nothing is done then.
    """
    groups, rows, tops = session.groups, [], []
    for place, prompt in enumerate(prompts):
        try:
            rows.append(_checked(session, prompt))
        except ConfigError as error:
            raise ConfigError(f"prompt {place + 1}: {error}") from None
        tops.append(prompt.own.get("top_k", top) or top)
    records = {}
    mine = range(groups.data_rank, len(prompts), groups.data_size)
    for first in range(0, len(mine), batch):
        part = mine[first : first + batch]
        found = _most_likely(session, [rows[place] for place in part], max(tops[place] for place in part))
        for place, masks in zip(part, found, strict=True):
            records[place] = _record(session.tokenizer, prompts[place], [each[: tops[place]] for each in masks])
        progress(min(len(prompts), (first + len(part)) * groups.data_size), len(prompts))
    if groups.data is not None:
        if groups.pipe_rank or groups.tensor_rank:
            return []
        shares = gather_values([[place, json.dumps(each)] for place, each in records.items()], 0, groups.data)
        records = {place: parse_json(text) for share in shares for place, text in share}
    return [records[place] for place in sorted(records)] if session.speaks else []


def _checked(session: Session, prompt: Prompt) -> list[int]:
    if other := sorted(set(prompt.own) - {"top_k"}):
        raise ConfigError(f"{other[0]}: a model that fills masks takes top_k only")
    if prompt.own.get("top_k", 0) < 0:
        raise ConfigError(f"top_k={prompt.own['top_k']} is out of range; use 0 or more")
    tokens, context = tokens_of(session.tokenizer, prompt.text), session.runner.context
    if not all(0 <= token < session.runner.vocab_size for token in tokens):
        raise ConfigError(f"the prompt has a token outside the vocabulary of {session.runner.vocab_size}")
    if len(tokens) > context:
        raise ConfigError(f"the prompt has {len(tokens)} tokens, its ends included, and the model reads {context}")
    return tokens


@torch.inference_mode()
def _most_likely(session: Session, rows: Sequence[Sequence[int]], top: int) -> list[Found]:
    """Return the ``top`` most likely tokens of every mask of every row."""
    runner, mask = session.runner, session.tokenizer.specials.mask
    top = min(top, runner.vocab_size)
    places = [(row, place) for row, tokens in enumerate(rows) for place, token in enumerate(tokens) if token == mask]
    hidden = runner.run(rows)
    found = torch.zeros(len(places), 2 * top, dtype=torch.float64)
    if runner.is_last_stage:
        which = torch.tensor(places, device=hidden.device)
        values, tokens = runner.logits(hidden[which[:, 0], which[:, 1]]).log_softmax(dim=-1).topk(top)
        found[:, :top], found[:, top:] = tokens, values
    answer: list[Found] = [[] for _ in rows]
    for (row, _), numbers in zip(places, runner.share(found).tolist(), strict=True):
        answer[row].append([(int(numbers[at]), numbers[top + at]) for at in range(top)])
    return answer


def _record(tokenizer: Tokenizer, prompt: Prompt, masks: Found) -> dict[str, Any]:
    assert tokenizer.specials.mask is not None
    name = name_of(tokenizer, tokenizer.specials.mask).strip()
    whole, *parts = prompt.text.split(name)
    for candidates, part in zip(masks, parts, strict=True):
        word = name_of(tokenizer, candidates[0][0]).strip()
        continues = word.startswith(CONTINUES) and word != CONTINUES
        whole = (whole.rstrip() + word.removeprefix(CONTINUES) if continues else whole + word) + part
    return {
        "id": prompt.id,
        "prompt": prompt.text,
        "all_text": whole,
        "masks": [[_candidate(tokenizer, *each) for each in candidates] for candidates in masks],
    }


def _candidate(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    text = name_of(tokenizer, token).strip()
    return {"token": token, "text": text, "probability": math.exp(logprob), "logprob": logprob}
