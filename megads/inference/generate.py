"""Many prompts through one model: in batches, on every replica, results in the order of the prompts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from pydantic import TypeAdapter, ValidationError

from megads.comm.leaving import disconnect
from megads.comm.messages import gather_values
from megads.errors import ConfigError, DataError
from megads.inference.engine import Engine
from megads.inference.request import Request, TokenScore
from megads.inference.retro.neighbors import NeighborSource
from megads.inference.retro.prompts import read_neighbors, source_of
from megads.inference.sampling import Sampling
from megads.inference.session import Session
from megads.inference.tokenizer import encode_text, filled
from megads.storage.reading import parse_json

LEAVE_S = 60.0
"""For all ranks to end: the first may still write what was generated."""

SAMPLING = tuple(each.name for each in fields(Sampling))
"""What a line of prompts may set for itself."""


@dataclass(frozen=True)
class Prompt:
    """A text to continue, and what is particular to it.

    Attributes:
        text: empty: a new document, which begins with the end-of-text token.
        id: comes back with the result.
        own: settings of :class:`Sampling` that differ from those of the command.
        tokens: of the text, where they are known; empty: the tokenizer's.
        neighbors: texts that a model which looks at neighbours is to look at, for each chunk of 64 tokens; of a
            single list all chunks have the same. Empty: it looks for them, or has none.
    """

    text: str
    id: Any = None
    own: Mapping[str, Any] = field(default_factory=dict)
    tokens: Sequence[int] = ()
    neighbors: Sequence[Sequence[str]] = ()

    def sampling(self, default: Sampling, place: int) -> Sampling:
        """Return its settings; a seed is that of the command plus ``place``, unless it has its own.

        Raises:
            ConfigError: a setting is wrong.
        """
        seed = None if default.seed is None else default.seed + place
        return replace(default, **{"seed": seed, **self.own})


def read_prompts(path: Path) -> list[Prompt]:
    """Return the prompts of a file: of ``*.jsonl`` and ``*.json`` one object a line, else one text a line.

    An object has ``prompt`` (a text, or an object with ``text``) or ``text``, may have an ``id``, and may
    have settings of :class:`Sampling`; and ``neighbors`` or ``ctxs``, see :func:`read_neighbors`.

    Raises:
        DataError: the file cannot be read, or a line is wrong.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"--input {path}: {error.strerror}") from None
    return _prompts(content, str(path), is_json=path.suffix in (".json", ".jsonl"))


def prompts_of(content: bytes) -> list[Prompt]:
    """Return the prompts that standard input had: objects if it begins with one, else one text a line.

    Raises:
        DataError: a line is wrong, see :func:`read_prompts`.
    """
    return _prompts(content, "-", is_json=content.lstrip().startswith(b"{"))


def _prompts(content: bytes, name: str, *, is_json: bool) -> list[Prompt]:
    try:
        # Not splitlines: JSON strings may have separators of lines that are not line feeds.
        lines = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"--input {name}: {error}") from None
    prompts = [
        _parsed(line, f"{name}:{number + 1}", number) if is_json else Prompt(line, number)
        for number, line in enumerate(lines)
        if line.strip()
    ]
    if not prompts:
        raise DataError(f"--input {name}: has no prompt")
    return prompts


def _parsed(line: str, where: str, number: int) -> Prompt:
    try:
        found = parse_json(line)
        json.dumps(found, ensure_ascii=False).encode()  # a lone surrogate is a ValueError
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None
    text = found.get("prompt", found.get("text")) if isinstance(found, dict) else None
    if isinstance(text, dict):
        text = text.get("text")
    if not isinstance(text, str):
        raise DataError(f'{where}: expected an object with "prompt" or "text"')
    own = {name: found[name] for name in SAMPLING if name in found}
    if isinstance(own.get("stop"), str):
        own["stop"] = [own["stop"]]
    if isinstance(own.get("logit_bias"), dict):  # as OpenAI's
        own["logit_bias"] = [
            [int(token) if token.isdecimal() else token, bias] for token, bias in own["logit_bias"].items()
        ]
    try:
        typed = TypeAdapter(Sampling).validate_json(json.dumps(own), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from None
    except ConfigError as error:
        raise DataError(f"{where}: {error}") from None
    own = {name: getattr(typed, name) for name in own}
    return Prompt(text, found.get("id", number), own, neighbors=read_neighbors(found, where))


def tokens_of(session: Session, text: str) -> list[int]:
    """Return the tokens of a prompt; for an empty one that is continued the end-of-text token.

    Raises:
        ConfigError: it has bytes that are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError("the prompt is not UTF-8") from None
    if not session.continues:
        return encode_text(session.tokenizer, text)
    return session.tokenizer.encode(text) or [session.tokenizer.eod]


def generate(
    session: Session,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    progress: Callable[[int, int], None] = lambda done, total: None,
    retrieve: NeighborSource | None = None,
) -> list[dict[str, Any]]:
    """Return a record for every prompt, in order, on rank 0; elsewhere nothing. All ranks call it.

    A record has ``id``, ``prompt``, ``text`` (the output), ``all_text`` (see :func:`_whole`), ``tokens`` (of the
    output), ``finish_reason`` and, with ``logprobs``, ``logprobs``: of every token its number, log-probability and
    most likely tokens.

    Args:
        session: the model; each of its replicas takes its share of the prompts.
        prompts: the same on every rank.
        sampling: for all of them.
        progress: called on rank 0 with how many are finished, and of how many.
        retrieve: finds neighbours for the prompts that have none of their own.

    Raises:
        ConfigError: a prompt does not fit the context, or a setting of it is wrong, or it has neighbours that the
            model does not look at; nothing is generated then.
    """
    groups = session.groups
    engine = Engine(session.runner, tokenizer=session.tokenizer, eos=session.eos)
    requests: dict[int, Request] = {}
    for place, prompt in enumerate(prompts):
        try:
            tokens = list(prompt.tokens) or tokens_of(session, prompt.text)
            chosen = prompt.sampling(sampling, place)
            engine.check(tokens, chosen)
            neighbors = source_of(session.runner, session.tokenizer, prompt.neighbors) or retrieve
        except ConfigError as error:
            raise ConfigError(f"prompt {place + 1}: {error}") from None
        if place % groups.data_size == groups.data_rank:
            requests[place] = engine.add(tokens, chosen, neighbors)
    for done, _ in enumerate(engine.run(), start=1):
        progress(min(len(prompts), done * groups.data_size), len(prompts))
    records = {place: _record(session, prompts[place], request) for place, request in requests.items()}
    if groups.data is not None:
        if groups.pipe_rank or groups.tensor_rank:
            return []
        shares = gather_values([[place, json.dumps(each)] for place, each in records.items()], 0, groups.data)
        records = {place: parse_json(text) for share in shares for place, text in share}
    return [records[place] for place in sorted(records)] if session.speaks else []


def _whole(session: Session, text: str, request: Request) -> str:
    """Return prompt and output as one text.

    Where an encoder has read the prompt: the prompt with its sentinels filled in; without any the output alone.
    """
    if session.continues:
        return text + request.text
    found = filled(session.tokenizer, text, request.output, session.eos)
    return request.text if found is None else found


def _record(session: Session, prompt: Prompt, request: Request) -> dict[str, Any]:
    record: dict[str, Any] = {
        "id": prompt.id,
        "prompt": prompt.text,
        "text": request.text,
        "all_text": _whole(session, prompt.text, request),
        "tokens": len(request.output),
        "finish_reason": request.finish_reason,
    }
    if request.sampling.logprobs is not None:
        record["logprobs"] = [_scored(each) for each in [*request.prompt_scores, *request.scores]]
    return record


def _scored(score: TokenScore) -> dict[str, Any]:
    return {"token": score.token, "logprob": score.logprob, "top": [list(each) for each in score.top]}


def stream(
    session: Session,
    text: str,
    sampling: Sampling,
    retrieve: NeighborSource | None = None,
    *,
    tokens: Sequence[int] = (),
) -> Iterator[str]:
    """Yield the output for one prompt, as it grows; where it fills gaps in the prompt the whole text, at the end.

    All ranks of the first replica call it. ``retrieve`` finds neighbours of the text's chunks; ``tokens`` are the
    text's, where they are known.

    Raises:
        ConfigError: the prompt does not fit the context.
    """
    engine = Engine(session.runner, tokenizer=session.tokenizer, eos=session.eos)
    request = engine.add(list(tokens) or tokens_of(session, text), sampling, retrieve)
    if request.source:
        list(engine.run())
        yield _whole(session, text, request)
    shown = 0
    while not engine.is_idle:
        engine.step()
        settled = request.settled_text
        if len(settled) > shown:
            yield settled[shown:]
            shown = len(settled)


def leave() -> None:
    """Wait for the other ranks, so that none ends while another still talks to it; of several ranks each ends here."""
    if not dist.is_initialized():
        return
    is_alone = dist.get_world_size() == 1
    disconnect(LEAVE_S)
    if not is_alone:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # threads of the groups may still run, and an interpreter that ends under them aborts
