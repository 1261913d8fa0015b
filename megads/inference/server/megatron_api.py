"""Megatron-LM's ``PUT /api``: its fields, defaults and answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from megads.errors import ConfigError
from megads.inference.request import TokenScore
from megads.inference.sampling import Sampling
from megads.inference.server.engine_loop import BeamJob, EngineLoop, Update
from megads.inference.server.requests import BadRequest, all_of, read_json, while_connected

MOST_PROMPTS = 128
FLAGS = ("logprobs", "add_BOS", "stop_on_double_eol", "stop_on_eol", "prevent_newline_after_colon", "no_log")
NUMBERS: dict[str, tuple[type, float, float, float]] = {
    "tokens_to_generate": (int, 64, 0, math.inf),
    "temperature": (float, 1.0, 0, 100),
    "top_k": (int, 0, 0, 1000),
    "top_p": (float, 0.0, 0, 1),
    "top_p_decay": (float, 0.0, 0, 1),
    "top_p_bound": (float, 0.0, 0, 1),
    "random_seed": (int, -1, 0, 2**63),
    "beam_width": (int, 0, 1, math.inf),
    "stop_token": (int, -1, 0, math.inf),
    "length_penalty": (float, 1.0, -10, 10),
}
"""Type, default, least and greatest value. Defaults outside of the range mean: not given."""
RENAMED = {"max_len": "tokens_to_generate", "sentences": "prompts"}


class MegatronApi:
    """The route.

    Args:
        loop: the engine.
    """

    def __init__(self, loop: EngineLoop):
        self.loop, self.tokenizer = loop, loop.session.tokenizer

    async def generate(self, request: Request) -> Response:
        """``PUT /api``."""
        body = await read_json(request)
        if not self.loop.session.continues:
            raise BadRequest("this model does not continue prompts; use POST /v1/completions")
        fields = parse(body)
        prompts = self._prompts(body, fields)
        eos = (fields["stop_token"],) if fields["stop_token"] >= 0 else self.loop.session.eos
        if fields["beam_width"]:
            return await self._beams(request, prompts, fields, eos)
        sampling = self._sampling(fields, eos)
        room = self.loop.session.runner.context
        for prompt in prompts:
            if len(prompt) + sampling.max_tokens > room:
                raise BadRequest(
                    f"a prompt of {len(prompt)} tokens and tokens_to_generate={sampling.max_tokens} do not fit the "
                    f"context of {room} tokens",
                    "tokens_to_generate",
                )
            self.loop.check(prompt, sampling)
        self.loop.check_room(len(prompts))
        seeds = [None if sampling.seed is None else sampling.seed + place for place in range(len(prompts))]
        works = [
            self.loop.complete(prompt, replace(sampling, seed=seed))
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        updates = await while_connected(request, all_of(works))
        answer = [self._text(prompt, update) for prompt, update in zip(prompts, updates, strict=True)]
        logprobs = [_logprobs([*each.prompt_scores, *each.scores]) for each in updates]
        found = {"text": [text for text, _ in answer], "segments": [segments for _, segments in answer]}
        return JSONResponse({**found, "logprobs": logprobs if fields["logprobs"] else None})

    def _prompts(self, body: dict[str, Any], fields: dict[str, Any]) -> list[list[int]]:
        texts = body["prompts"]
        first = [self.tokenizer.eod] if fields["add_BOS"] else []
        if not fields["add_BOS"] and not all(texts):
            raise BadRequest("an empty prompt needs add_BOS=true", "prompts")
        return [[*first, *self.tokenizer.encode(text)] for text in texts]

    def _sampling(self, fields: dict[str, Any], eos: Sequence[int]) -> Sampling:
        stop = [text for name, text in (("stop_on_double_eol", "\n\n"), ("stop_on_eol", "\n")) if fields[name]]
        banned: tuple[tuple[int, int], ...] = ()
        if fields["prevent_newline_after_colon"]:
            colon, newline = (self.tokenizer.encode(text)[-1:] for text in (":", "\n"))
            banned = tuple(zip(colon, newline, strict=False))
        top_p = fields["top_p"] or 1.0
        try:
            return Sampling(
                max_tokens=fields["tokens_to_generate"],
                temperature=fields["temperature"],
                top_k=fields["top_k"],
                top_p=top_p,
                top_p_decay=fields["top_p_decay"],
                top_p_bound=fields["top_p_bound"],
                seed=fields["random_seed"] if fields["random_seed"] >= 0 else None,
                stop=tuple(stop),
                include_stop=True,
                stop_token_ids=tuple(eos),
                ignore_eos=True,
                logprobs=0 if fields["logprobs"] else None,
                prompt_logprobs=fields["logprobs"],
                banned_pairs=banned,
            )
        except ConfigError as error:
            raise BadRequest(str(error)) from None

    def _text(self, prompt: Sequence[int], update: Update) -> tuple[str, list[str]]:
        """Return prompt and output as one text, and the text of every token."""
        return self.tokenizer.decode(prompt) + update.text, self._segments([*prompt, *update.tokens])

    def _segments(self, tokens: Sequence[int]) -> list[str]:
        return [self.tokenizer.decode([token]) for token in tokens]

    async def _beams(
        self, request: Request, prompts: list[list[int]], fields: dict[str, Any], eos: Sequence[int]
    ) -> Response:
        if len(prompts) > 1:
            raise BadRequest(f"beam_width is for one prompt, not for {len(prompts)}", "prompts")
        prompt, most = prompts[0], self.loop.session.runner.num_slots
        if fields["beam_width"] > most:
            raise BadRequest(f"beam_width must be an integer from 1 to {most}", "beam_width")
        if not fields["tokens_to_generate"]:
            raise BadRequest("beam_width needs tokens_to_generate of 1 or more", "tokens_to_generate")
        self.loop.check_room(1)
        job = BeamJob(
            tuple(prompt), fields["beam_width"], fields["tokens_to_generate"], tuple(eos), fields["length_penalty"]
        )
        beams = await while_connected(request, self.loop.beam_search(job))
        tokens = [[*prompt, *(token for token in each.output if token not in eos)] for each in beams]
        texts = [self.tokenizer.decode(each) for each in tokens]
        segments = [self._segments(each) for each in tokens]
        return JSONResponse({"text": texts, "segments": segments, "scores": [each.score for each in beams]})


def parse(body: dict[str, Any]) -> dict[str, Any]:
    """Return every field of a request, with its default where it is not given.

    Raises:
        BadRequest: a value has another type or is out of range, or two fields exclude each other.
    """
    prompts = body.get("prompts")
    for old, new in RENAMED.items():
        if old in body:
            raise BadRequest(f"{old} is not a field; use {new}", old)
    if not isinstance(prompts, list) or not all(isinstance(each, str) for each in prompts):
        raise BadRequest("prompts must be a list of strings", "prompts")
    if not 0 < len(prompts) <= MOST_PROMPTS:
        raise BadRequest(f"prompts must have 1 to {MOST_PROMPTS} strings, it has {len(prompts)}", "prompts")
    fields: dict[str, Any] = {name: _flag(body, name) for name in FLAGS}
    fields |= {name: _number(body, name) for name in NUMBERS}
    _check_together(body, fields)
    return fields


def _check_together(body: dict[str, Any], fields: dict[str, Any]) -> None:
    if fields["tokens_to_generate"] == 0 and not fields["logprobs"]:
        raise BadRequest("tokens_to_generate=0 needs logprobs=true", "tokens_to_generate")
    if fields["temperature"] == 0:
        raise BadRequest("temperature must be above 0, at most 100", "temperature")
    if fields["top_p"] and fields["top_k"]:
        raise BadRequest("top_k and top_p: set one of them", "top_p")
    for name in ("top_p_decay", "top_p_bound"):
        if name in body and not fields["top_p"]:
            raise BadRequest(f"{name} needs top_p", name)
    if fields["top_p_bound"] > fields["top_p"]:
        raise BadRequest("top_p_bound must be at most top_p", "top_p_bound")


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise BadRequest(f"{name} must be a boolean value", name)
    return value


def _number(body: dict[str, Any], name: str) -> Any:
    kind, default, low, high = NUMBERS[name]
    if name not in body or (body[name] is None and name == "beam_width"):
        return default
    value = body[name]
    accepted = (int, float) if kind is float else (int,)
    if isinstance(value, bool) or not isinstance(value, accepted) or not low <= value <= high:
        words = "a number" if kind is float else "an integer"
        limits = f" from {low:g} to {high:g}" if math.isfinite(high) else f" of {low:g} or more"
        raise BadRequest(f"{name} must be {words}{limits}", name)
    return kind(value)


def _logprobs(scores: Sequence[TokenScore]) -> list[float]:
    return [each.logprob for each in scores if each.logprob is not None]
