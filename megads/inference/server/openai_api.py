"""OpenAI's routes: completions, chat completions, models; and vLLM's tokenize and detokenize."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from megads.data.chat.folder_template import ChatTemplate
from megads.errors import ConfigError, MegadsError
from megads.inference.sampling import Sampling
from megads.inference.server.answers import FINISH, Answer, chat_logprobs, completion_logprobs, usage_of
from megads.inference.server.engine_loop import EngineLoop, Update
from megads.inference.server.fields import UNSUPPORTED, ChatRequest, Common, CompletionRequest
from megads.inference.server.requests import BadRequest, NotFound, all_of, read_json, while_connected
from megads.inference.tokenizer import encode_text, name_of
from megads.monitor.log import LOG

_Fields = TypeVar("_Fields", bound=BaseModel)


@dataclass(frozen=True)
class _Job:
    """One sequence of an HTTP request: its place among the choices, its prompt and its settings."""

    index: int
    text: str
    tokens: Sequence[int]
    sampling: Sampling


class OpenAI:
    """The routes.

    Args:
        loop: the engine.
        model: the name under which the model is served.
        template: of its chats.
    """

    def __init__(self, loop: EngineLoop, model: str, template: ChatTemplate):
        self.loop, self.model, self.template = loop, model, template
        self.session, self.tokenizer = loop.session, loop.session.tokenizer

    async def models(self, request: Request) -> Response:
        """``GET /v1/models`` and ``/v1/models/{id}``."""
        card = {"id": self.model, "object": "model", "created": 0, "owned_by": "megads"}
        card["max_model_len"] = self.loop.session.runner.context
        wanted = request.path_params.get("name")
        if wanted is None:
            return JSONResponse({"object": "list", "data": [card]})
        self._check_model(wanted)
        return JSONResponse(card)

    async def tokenizer_info(self, request: Request) -> Response:
        """``GET /tokenizer_info``."""
        found: dict[str, Any] = {"eos_token_id": self.session.end, "eos_token_ids": list(self.loop.session.eos)}
        found["vocab_size"] = self.tokenizer.vocab_size
        template = {"chat_template": self.template.text} if self.template.text else {}
        return JSONResponse({**found, **self._special_tokens(), **template})

    async def tokenize(self, request: Request) -> Response:
        """``POST /tokenize``."""
        body = await read_json(request)
        prompt, is_whole = body.get("prompt"), body.get("add_special_tokens", True)
        if not isinstance(prompt, str):
            raise BadRequest("prompt must be a text", "prompt")
        if not isinstance(is_whole, bool):
            raise BadRequest("add_special_tokens must be true or false", "add_special_tokens")
        named = {text: token for text, token in self._ids_of_special_tokens() if text == prompt and not is_whole}
        tokens = [named[prompt]] if named else self._encode(prompt, is_whole)
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": self.loop.session.runner.context})

    async def detokenize(self, request: Request) -> Response:
        """``POST /detokenize``."""
        tokens = (await read_json(request)).get("tokens")
        size = self.loop.session.runner.vocab_size
        if not isinstance(tokens, list) or not all(type(each) is int and 0 <= each < size for each in tokens):
            raise BadRequest(f"tokens must be a list of integers from 0 to {size - 1}", "tokens")
        return JSONResponse({"prompt": self.tokenizer.decode(tokens)})

    async def completions(self, request: Request) -> Response:
        """``POST /v1/completions``."""
        asked = _parsed(CompletionRequest, await read_json(request))
        self._check(asked)
        if asked.suffix:
            raise BadRequest("suffix is not supported: the model continues texts", "suffix")
        if asked.best_of not in (None, asked.n):
            raise BadRequest(f"best_of={asked.best_of} is not supported; use n", "best_of")
        if asked.echo and not self.session.continues:
            raise BadRequest("echo is not supported: the output of this model does not continue the prompt", "echo")
        jobs = self._jobs(asked.prompts(), _sampling(asked.sampling), asked.n, asked.add_special_tokens)
        answer = Answer("text_completion", self.model)
        if asked.stream:
            return self._stream(
                answer, jobs, asked, lambda job, update, first: self._text_part(asked, job, update, first)
            )
        updates = await while_connected(request, self._complete(jobs))
        choices = [self._text_part(asked, job, update, True) for job, update in zip(jobs, updates, strict=True)]
        return JSONResponse(answer.whole(choices, self._usage(jobs, updates, asked.n)))

    async def chat(self, request: Request) -> Response:
        """``POST /v1/chat/completions``."""
        asked = _parsed(ChatRequest, await read_json(request))
        self._check(asked)
        messages = [each.plain() for each in asked.messages]
        text = self.template.render(messages, add_generation_prompt=asked.add_generation_prompt)
        tokens = self._encode(text, False)  # the template has written what begins a text
        room = max(1, self.loop.session.runner.context - len(tokens))
        jobs = self._jobs([tokens], _sampling(lambda: asked.sampling(room)), asked.n)
        answer = Answer("chat.completion", self.model)
        if asked.stream:
            return self._stream(answer, jobs, asked, partial(self._delta, asked))
        updates = await while_connected(request, self._complete(jobs))
        choices = [self._message(asked, job, update) for job, update in zip(jobs, updates, strict=True)]
        return JSONResponse(answer.whole(choices, self._usage(jobs, updates, asked.n)))

    def _check(self, asked: Common) -> None:
        if asked.model is not None:
            self._check_model(asked.model)
        for name, cure in UNSUPPORTED.items():
            if (asked.model_extra or {}).get(name) not in (None, False, []):
                raise BadRequest(f"{name} is not supported: {cure}", name)
        if asked.unknown:
            LOG.warning("request with fields that are ignored: %s", ", ".join(asked.unknown)[:200])

    def _check_model(self, name: str) -> None:
        if name != self.model:
            raise NotFound(f"the model {name!r:.100} does not exist; this server has {self.model!r}", "model")

    def _encode(self, text: str, is_whole: bool) -> list[int]:
        """Return the tokens of a text, with those that the tokenizer puts around one if it ``is_whole``."""
        if not self.session.continues:
            return encode_text(self.tokenizer, text)
        return self.tokenizer.encode(text) if is_whole else self.tokenizer.encode_plain(text)

    def _special_tokens(self) -> dict[str, str]:
        """Return the texts of the tokens that begin, end and fill up texts; there is always an end."""
        named = self.tokenizer.specials
        ids = {"bos_token": named.bos, "eos_token": self.session.end, "pad_token": named.pad}
        found = {name: name_of(self.tokenizer, token) for name, token in ids.items() if token is not None}
        return {**found, **self.template.tokens}

    def _ids_of_special_tokens(self) -> list[tuple[str, int]]:
        """Return text and token of begin and end: some tokenizers take these texts for ordinary ones."""
        texts, bos = self._special_tokens(), self.tokenizer.specials.bos
        begin = [(texts["bos_token"], bos)] if bos is not None else []
        return [*begin, (texts["eos_token"], self.session.end)]

    def _jobs(
        self, prompts: Sequence[str | Sequence[int]], sampling: Sampling, n: int, is_whole: bool = True
    ) -> list[_Job]:
        """Return a job for every prompt and every of its ``n`` texts, after checking that all can run."""
        if not prompts:
            raise BadRequest("prompt must not be empty", "prompt")
        self.loop.check_room(len(prompts) * n)
        jobs: list[_Job] = []
        for prompt in prompts:
            if isinstance(prompt, str):
                text, tokens = prompt, self._encode(prompt, is_whole)
                if not tokens and self.session.continues:
                    tokens = [self.tokenizer.eod]
                self.loop.check(tokens, sampling)
            else:
                tokens = list(prompt)
                self.loop.check(tokens, sampling)
                text = self.tokenizer.decode(tokens)
            for copy in range(n):
                seed = None if sampling.seed is None else sampling.seed + copy
                jobs.append(_Job(len(jobs), text, tokens, replace(sampling, seed=seed)))
        return jobs

    async def _complete(self, jobs: Sequence[_Job]) -> list[Update]:
        return await all_of([self.loop.complete(job.tokens, job.sampling) for job in jobs])

    def _usage(self, jobs: Sequence[_Job], updates: Sequence[Update], n: int) -> dict[str, int]:
        return usage_of(sum(len(job.tokens) for job in jobs[::n]), sum(len(each.tokens) for each in updates))

    def _text_part(self, asked: CompletionRequest, job: _Job, update: Update, first: bool) -> dict[str, Any]:
        """Return a choice, or a part of one; the first part has the echo."""
        echo = job.text if asked.echo and first else ""
        scores = [*(update.prompt_scores if asked.echo else ()), *update.scores]
        logprobs = None
        if asked.logprobs is not None:
            as_ids = asked.return_tokens_as_token_ids
            offset = 0 if asked.echo or not self.session.continues else len(job.text)
            logprobs = completion_logprobs(scores, self.tokenizer, as_ids=as_ids, offset=offset)
        reason = FINISH.get(update.finish_reason)
        return {"index": job.index, "text": echo + update.text, "logprobs": logprobs, "finish_reason": reason}

    def _message(self, asked: ChatRequest, job: _Job, update: Update) -> dict[str, Any]:
        message = {"role": "assistant", "content": update.text, "refusal": None}
        return {
            "index": job.index,
            "message": message,
            "logprobs": self._chat_logprobs(asked, update),
            "finish_reason": FINISH[update.finish_reason],
        }

    def _delta(self, asked: ChatRequest, job: _Job, update: Update, first: bool) -> dict[str, Any]:
        delta = {"role": "assistant", "content": update.text} if first else {"content": update.text}
        reason = FINISH.get(update.finish_reason)
        logprobs = self._chat_logprobs(asked, update)
        return {"index": job.index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def _chat_logprobs(self, asked: ChatRequest, update: Update) -> dict[str, Any] | None:
        if not asked.logprobs:
            return None
        return chat_logprobs(update.scores, self.tokenizer, as_ids=asked.return_tokens_as_token_ids)

    def _stream(self, answer: Answer, jobs: Sequence[_Job], asked: Common, part: Any) -> Response:
        async def events() -> AsyncGenerator[bytes, None]:
            counts = [0] * len(jobs)
            try:
                async with aclosing(self._merged(jobs)) as updates:
                    async for job, update, is_first in updates:
                        counts[job.index] += len(update.tokens)
                        yield _event(answer.chunk(part(job, update, is_first)))
            except MegadsError as error:  # the status has been sent; clients raise for this event
                problem = {"message": str(error), "type": "server_error", "param": None, "code": 503}
                yield _event({"error": problem})
                return
            if asked.reports_usage:
                usage = usage_of(sum(len(job.tokens) for job in jobs[:: asked.n]), sum(counts))
                yield _event(answer.chunk(None, usage))
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _merged(self, jobs: Sequence[_Job]) -> AsyncGenerator[tuple[_Job, Update, bool], None]:
        """Yield the updates of all jobs as they come, and whether each is the first of its job."""
        queue: asyncio.Queue[tuple[_Job, Update, bool] | BaseException] = asyncio.Queue()

        async def feed(job: _Job) -> None:
            is_first = True
            try:
                async with aclosing(self.loop.generate(job.tokens, job.sampling)) as updates:
                    async for update in updates:
                        queue.put_nowait((job, update, is_first))
                        is_first = False
            except Exception as error:
                queue.put_nowait(error)

        tasks = [asyncio.create_task(feed(job)) for job in jobs]
        left = len(jobs)
        try:
            while left:
                found = await queue.get()
                if isinstance(found, BaseException):
                    raise found
                left -= bool(found[1].finish_reason)
                yield found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"


def _parsed(kind: type[_Fields], body: dict[str, Any]) -> _Fields:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "body"
        raise BadRequest(f"{name}: {first['msg'].lower()}", str(first["loc"][0]) if first["loc"] else None) from None


def _sampling(make: Any) -> Sampling:
    try:
        return make()
    except (ConfigError, ValueError) as error:
        raise BadRequest(str(error)) from None
