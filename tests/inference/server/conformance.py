"""Every field that clients send, what the server makes of it, and a check of that: docs/serving-api.md is made of it.

python -m tests.inference.server.conformance > docs/serving-api.md
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

Ask = Callable[..., httpx.Response]
"""Sends a body of the route with these fields besides those of :data:`PLAIN`."""

COMPLETIONS, CHAT, API = "POST /v1/completions", "POST /v1/chat/completions", "PUT /api"
TOKENIZE, DETOKENIZE = "POST /tokenize", "POST /detokenize"
PLAIN: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "hello", "max_tokens": 12, "temperature": 0},
    CHAT: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "temperature": 0},
    API: {"prompts": ["hello"], "tokens_to_generate": 12, "top_k": 1},
    TOKENIZE: {"prompt": "hello"},
    DETOKENIZE: {"tokens": [7, 4]},
}
YES, NO, IDLE = "supported", "refused with 400", "accepted without effect"
END, D = 52, 3  # tokens; the second one is the letter d


@dataclass(frozen=True)
class Row:
    """A field.

    Attributes:
        route: of it.
        name: of it.
        status: YES, NO or IDLE.
        words: of the page.
        wrong: a value that is refused with a 400; None: every value has a meaning.
        check: of what it does; an IDLE one is compared with an answer without it.
        value: that is sent, of one that is refused or has no effect.
    """

    route: str
    name: str
    status: str
    words: str
    wrong: Any = None
    check: Callable[[Ask], bool] | None = None
    value: Any = None


def answer(response: httpx.Response) -> Any:
    """Return a body without what differs in every answer."""
    assert response.status_code == 200, response.text
    found = response.json()
    return {key: value for key, value in found.items() if key not in ("id", "created")}


def text(response: httpx.Response) -> str:
    """Return the text of the first choice."""
    choice = answer(response)["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def _reason(response: httpx.Response) -> str:
    return str(answer(response)["choices"][0]["finish_reason"])


def _used(response: httpx.Response) -> int:
    return int(answer(response)["usage"]["completion_tokens"])


def _many(ask: Ask, **fields: Any) -> int:
    return len(answer(ask(**fields))["choices"])


def _is_greedy(ask: Ask, **fields: Any) -> bool:
    return text(ask(temperature=5.0, seed=1)) != text(ask()) == text(ask(temperature=5.0, seed=1, **fields))


def _changes(ask: Ask, **fields: Any) -> bool:
    return text(ask()) != text(ask(**fields))


_END_FIRST = {"logit_bias": {str(END): 100}}
_ALWAYS_D = {"logit_bias": {str(D): 100}}


def _shared(route: str) -> list[Row]:
    def row(name: str, words: str, wrong: Any, check: Callable[[Ask], bool]) -> Row:
        return Row(route, name, YES, words, wrong, check)

    return [
        row("max_tokens", "at most generated; 16, of a chat what the context has room for", -1,
            lambda ask: _used(ask(max_tokens=3)) == 3),
        row("n", "texts for each prompt, 1 to 128", 0, lambda ask: _many(ask, n=3) == 3),
        row("temperature", "0 to 100; default 1; 0: the most likely token", -1, _is_greedy_without_temperature),
        row("top_p", "above 0, at most 1", 0, lambda ask: _is_greedy(ask, top_p=1e-6)),
        row("top_k", "0 or -1: all", "a", lambda ask: _is_greedy(ask, top_k=1)),
        row("min_p", "0 to 1", 2, lambda ask: _is_greedy(ask, min_p=1)),
        row("repetition_penalty", "0.001 to 1000", 0, lambda ask: _changes(ask, repetition_penalty=50)),
        row("presence_penalty", "-2 to 2", 3, lambda ask: _changes(ask, presence_penalty=2, **_BOTH)),
        row("frequency_penalty", "-2 to 2", 3, lambda ask: _changes(ask, frequency_penalty=2, **_BOTH)),
        row("logit_bias", "token number -> -100 to 100", {"x": 1},
            lambda ask: text(ask(**_ALWAYS_D)) == "d" * 12),
        row("seed", "the same seed, the same text; text i of `n` has seed + i", "a",
            lambda ask: text(ask(temperature=5, seed=4)) == text(ask(temperature=5, seed=4))
            != text(ask(temperature=5, seed=5))),
        row("stop", "a text or up to 64", 5, lambda ask: text(ask(stop="d", **_ALWAYS_D)) == ""),
        row("stop_token_ids", "token numbers", ["a"],
            lambda ask: _reason(ask(stop_token_ids=[D], **_ALWAYS_D)) == "stop"),
        row("include_stop_str_in_output", "", 1,
            lambda ask: text(ask(stop="d", include_stop_str_in_output=True, **_ALWAYS_D)) == "d"),
        row("ignore_eos", "", 1, lambda ask: _used(ask(**_END_FIRST)) == 1
            and _used(ask(ignore_eos=True, **_END_FIRST)) == 12),
        row("min_tokens", "no end before", -1, lambda ask: _used(ask(min_tokens=3, **_END_FIRST)) >= 3),
        row("stream", "server-sent events, the last one is [DONE]", "yes",
            lambda ask: ask(stream=True).text.endswith("data: [DONE]\n\n")),
        row("stream_options", "`include_usage`; without `stream` it has no effect", 5,
            lambda ask: '"total_tokens"' in ask(stream=True, stream_options={"include_usage": True}).text
            and '"total_tokens"' not in ask(stream=True).text),
        row("return_tokens_as_token_ids", "in log-probabilities", 1,
            lambda ask: "token_id:" in ask(return_tokens_as_token_ids=True, **_scored(route)).text),
        row("skip_special_tokens", "whether texts are without special tokens; default true", 1, _takes_both),
        Row(route, "model", YES, "the server's; another one is a 404", 5, lambda ask: answer(ask(model="tiny"))["model"]
            == "tiny" and ask(model="other").status_code == 404),
        Row(route, "user", IDLE, "", 5, value="me"),
        Row(route, "any other", IDLE, "a warning in the log", value=1),
        *(Row(route, name, NO, words, value=[1]) for name, words in (
            ("prompt_logprobs", "`echo` with `logprobs`"),
            ("use_beam_search", "`beam_width` of PUT /api"),
            ("tools", "describe them in a message"),
            ("functions", "describe them in a message"),
            ("audio", ""),
        )),
    ]  # fmt: skip


_BOTH = {"logit_bias": {str(D): 1.0}}


def _scored(route: str) -> dict[str, Any]:
    return {"logprobs": 1} if route == COMPLETIONS else {"logprobs": True}


def _is_greedy_without_temperature(ask: Ask) -> bool:
    return text(ask(temperature=0)) == text(ask(temperature=0, seed=9)) != text(ask(temperature=5, seed=9))


def _takes_both(ask: Ask) -> bool:
    return text(ask(skip_special_tokens=True)) == text(ask(skip_special_tokens=False))


def _said(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def _first_scores(response: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = answer(response)["choices"][0]["logprobs"]["content"][0]
    return found


def _is_megatron_s(text: str) -> Callable[[Ask], bool]:
    return lambda ask: answer(ask())["text"][0].startswith(text)


ROWS = [
    Row(COMPLETIONS, "prompt", YES, "a text, texts, token numbers, lists of them", {"a": 1},
        lambda ask: [_many(ask, prompt=each) for each in ("ab", ["ab", "c"], [1, 2], [[1], [2]])] == [1, 2, 1, 2]),
    Row(COMPLETIONS, "echo", YES, "the prompt before the text", 1,
        lambda ask: text(ask(echo=True)) == "hello" + text(ask())),
    Row(COMPLETIONS, "logprobs", YES, "0 to 1000 most likely tokens; with `echo` the prompt's too, the first null", -1,
        lambda ask: len(answer(ask(logprobs=2))["choices"][0]["logprobs"]["token_logprobs"]) == 12
        and answer(ask(logprobs=0, echo=True))["choices"][0]["logprobs"]["token_logprobs"][0] is None),
    Row(COMPLETIONS, "best_of", NO, "unless it equals `n`", value=3),
    Row(COMPLETIONS, "suffix", NO, "the model continues texts", value="end"),
    Row(COMPLETIONS, "add_special_tokens", YES, "whether the tokenizer's own are put around a text; default true", 1,
        lambda ask: text(ask(add_special_tokens=False)) == text(ask())),
    *_shared(COMPLETIONS),
    Row(CHAT, "messages", YES, "`role`, `content` (a text, or parts of type text; others are a 400)",
        [{"role": "user", "content": [{"type": "image_url"}]}],
        lambda ask: text(ask()) == text(ask(messages=_said([{"type": "text", "text": "hello"}])))
        != text(ask(messages=_said("you")))),
    Row(CHAT, "max_completion_tokens", YES, "counts before `max_tokens`", -1,
        lambda ask: _used(ask(max_completion_tokens=2)) == 2),
    Row(CHAT, "logprobs", YES, "true: those of the output", 1,
        lambda ask: len(answer(ask(logprobs=True))["choices"][0]["logprobs"]["content"]) == 12),
    Row(CHAT, "top_logprobs", YES, "0 to 20", 21,
        lambda ask: len(_first_scores(ask(logprobs=True, top_logprobs=3))["top_logprobs"]) == 3),
    Row(CHAT, "add_generation_prompt", YES, "default true", 1, lambda ask: ask(add_generation_prompt=False).is_success),
    Row(CHAT, "response_format", NO, "unless its type is text", value={"type": "json_object"}),
    *_shared(CHAT),
    Row(API, "prompts", YES, "1 to 128 texts; an empty one with `add_BOS`", [], _is_megatron_s("hello")),
    Row(API, "tokens_to_generate", YES, "default 64; 0 with `logprobs`", -1,
        lambda ask: len(answer(ask(tokens_to_generate=2))["segments"][0]) == 7),
    Row(API, "logprobs", YES, "", 1, lambda ask: len(answer(ask(logprobs=True))["logprobs"][0]) >= 5),
    Row(API, "temperature", YES, "above 0, at most 100", 0, lambda ask: ask(temperature=2).is_success),
    Row(API, "top_k", YES, "0 to 1000", 1001, lambda ask: ask(top_k=5).is_success),
    Row(API, "top_p", YES, "0 to 1, not with `top_k`", 0.5, lambda ask: ask(top_k=0, top_p=0.5).is_success),
    Row(API, "top_p_decay", YES, "0 to 1, with `top_p`", 0.5,
        lambda ask: ask(top_k=0, top_p=0.5, top_p_decay=0.5).is_success),
    Row(API, "top_p_bound", YES, "at most `top_p`", 0.5,
        lambda ask: ask(top_k=0, top_p=0.5, top_p_bound=0.25).is_success),
    Row(API, "add_BOS", YES, "the end-of-text token before each prompt", 1,
        lambda ask: answer(ask(add_BOS=True))["segments"][0][0] == "Z"),
    Row(API, "stop_on_double_eol", YES, "", 1, lambda ask: ask(stop_on_double_eol=True).is_success),
    Row(API, "stop_on_eol", YES, "", 1, lambda ask: ask(stop_on_eol=True).is_success),
    Row(API, "prevent_newline_after_colon", YES, "", 1,
        lambda ask: ask(prevent_newline_after_colon=False).is_success),
    Row(API, "stop_token", YES, "a token number that ends a text; default: the model's", -1,
        lambda ask: ask(stop_token=D).is_success),
    Row(API, "random_seed", YES, "prompt i has seed + i", -1,
        lambda ask: answer(ask(top_k=0, random_seed=5)) == answer(ask(top_k=0, random_seed=5))),
    Row(API, "beam_width", YES, "one prompt; the answer has `scores`, and sampling has no effect", 0,
        lambda ask: len(answer(ask(beam_width=3))["scores"]) == 3),
    Row(API, "length_penalty", YES, "-10 to 10, with `beam_width`", 11,
        lambda ask: answer(ask(beam_width=3)) != answer(ask(beam_width=3, length_penalty=0.0))),
    Row(API, "no_log", IDLE, "requests are not logged", 1, value=True),
    Row(API, "any other", IDLE, "as in Megatron-LM", value=1),
    Row(API, "max_len", NO, "`tokens_to_generate`", value=5),
    Row(API, "sentences", NO, "`prompts`", value=["a"]),
    Row(TOKENIZE, "prompt", YES, "a text", 5, lambda ask: answer(ask())["tokens"] == [7, 4, 11, 11, 14]),
    Row(TOKENIZE, "add_special_tokens", YES, "default true", 1, lambda ask: ask(add_special_tokens=False).is_success),
    Row(TOKENIZE, "any other", IDLE, "", value=1),
    Row(DETOKENIZE, "tokens", YES, "token numbers", ["a"], lambda ask: answer(ask())["prompt"] == "he"),
    Row(DETOKENIZE, "any other", IDLE, "", value=1),
]  # fmt: skip

_HEAD = """# The server's fields

What [`megads serve`](inference.md#a-server) makes of every field. A value of another type or out of range is a 400 with
one line. `tests/inference/server/conformance.py` makes this page, and every row is a test.
"""


def page() -> str:
    """Return docs/serving-api.md."""
    parts = [_HEAD]
    for route in PLAIN:
        rows = [f"| `{each.name}` | {each.status} | {each.words} |" for each in ROWS if each.route == route]
        parts.append("\n".join([f"## {route}", "", "| field | | |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
