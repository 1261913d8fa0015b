"""The fields of OpenAI's requests, and what they mean for sampling."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, field_validator

from megads.inference.sampling import Sampling

Count = Annotated[StrictInt, Field(ge=0)]
Number = Annotated[float, Field(strict=True)]


UNSUPPORTED = {
    "prompt_logprobs": "echo with logprobs gives those of the prompt",
    "tools": "describe them in a message",
    "functions": "describe them in a message",
    "audio": "the model writes text",
    "use_beam_search": "PUT /api has beam_width",
}
"""Fields whose meaning an answer without them would miss -> what to do instead."""


class StreamOptions(BaseModel):
    """``stream_options``."""

    include_usage: StrictBool = False


class Common(BaseModel):
    """What completions and chat completions share; unknown fields are ignored, with a warning in the log."""

    model_config = ConfigDict(extra="allow")

    model: StrictStr | None = None
    n: Annotated[StrictInt, Field(ge=1, le=128)] = 1
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[StrictInt, Field(ge=-1)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[Number, Field(ge=-100, le=100)]] | None = None
    seed: StrictInt | None = None
    stop: StrictStr | Annotated[list[StrictStr], Field(max_length=64)] | None = None
    stop_token_ids: list[StrictInt] | None = None
    include_stop_str_in_output: StrictBool = False
    ignore_eos: StrictBool = False
    min_tokens: Count = 0
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    skip_special_tokens: StrictBool = True
    return_tokens_as_token_ids: StrictBool = False
    user: StrictStr | None = None

    def _sampling(self, max_tokens: int, logprobs: int | None, *, scores_prompt: bool) -> Sampling:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return Sampling(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(0, self.top_k or 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=tuple((int(token), bias) for token, bias in (self.logit_bias or {}).items()),
            seed=self.seed,
            stop=tuple(each for each in stop if each),
            include_stop=self.include_stop_str_in_output,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            prompt_logprobs=scores_prompt,
            skip_special_tokens=self.skip_special_tokens,
        )

    @field_validator("logit_bias")
    @classmethod
    def _has_tokens(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        wrong = [name for name in bias or {} if not name.isdecimal()]
        if wrong:
            raise ValueError(f"expected token numbers, not {wrong[0][:40]!r}")
        return bias

    @property
    def reports_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def unknown(self) -> list[str]:
        """Fields that are ignored."""
        return sorted(self.model_extra or {})


class CompletionRequest(Common):
    """``POST /v1/completions``."""

    prompt: StrictStr | list[StrictStr] | list[StrictInt] | list[list[StrictInt]]
    max_tokens: Count | None = None
    echo: StrictBool = False
    logprobs: Annotated[StrictInt, Field(ge=0, le=1000)] | None = None
    best_of: Annotated[StrictInt, Field(ge=1)] | None = None
    suffix: StrictStr | None = None
    add_special_tokens: StrictBool = True

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts, one by one."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [[int(each) for each in self.prompt]]
        return list(self.prompt)  # type: ignore[arg-type]

    def sampling(self) -> Sampling:
        """Return what it asks for."""
        most = 16 if self.max_tokens is None else self.max_tokens
        return self._sampling(most, self.logprobs, scores_prompt=self.echo and self.logprobs is not None)


class Message(BaseModel):
    """One message of a chat."""

    model_config = ConfigDict(extra="allow")

    role: StrictStr
    content: StrictStr | list[dict[str, Any]] | None = None

    @field_validator("content")
    @classmethod
    def _is_text(cls, content: Any) -> Any:
        for part in content if isinstance(content, list) else ():
            kind = part.get("type", "text")
            if kind != "text" or not isinstance(part.get("text"), str):
                raise ValueError(f"parts of type text with a text are supported, not {str(kind)[:40]!r}")
        return content

    def plain(self) -> dict[str, Any]:
        """Return it as chat templates expect it; parts of text become one text."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part["text"] for part in content)
        return {**(self.model_extra or {}), "role": self.role, "content": content or ""}


class ChatRequest(Common):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    add_generation_prompt: StrictBool = True
    response_format: dict[str, Literal["text"]] | None = None

    def sampling(self, room: int) -> Sampling:
        """Return what it asks for; ``room`` tokens fit behind the prompt, and are the default."""
        asked = self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
        scored = (self.top_logprobs or 0) if self.logprobs else None
        return self._sampling(room if asked is None else asked, scored, scores_prompt=False)
