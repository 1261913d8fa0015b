"""OpenAI's routes, asked by the official client where it can, compared with the engine itself."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace

import httpx
import openai
import pytest

from megads.cli.client import ask
from megads.inference.engine import Engine
from megads.inference.sampling import Sampling
from megads.inference.session import Session
from tests.inference import their_t5
from tests.inference.letters import Letters

GREEDY = {"model": "tiny", "temperature": 0}


@pytest.fixture(scope="module")
def client(served):
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def _wanted(served, prompt, **sampling):
    """Return what the engine gives for a prompt, on its own cache."""
    runner = served.loop.session.runner
    fresh = type(runner)(runner.module, runner.groups, context=runner.context, num_slots=1)
    engine = Engine(fresh, tokenizer=Letters(), eos=(52,))
    request = engine.add(Letters().encode(prompt), Sampling(**{"temperature": 0, "max_tokens": 16, **sampling}))
    list(engine.run())
    return request


def test_models(client):
    assert [each.id for each in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "megads"
    with pytest.raises(openai.NotFoundError, match="the model 'other' does not exist; this server has 'tiny'"):
        client.models.retrieve("other")


def test_a_completion(served, client):
    wanted = _wanted(served, "hello")
    made = client.completions.create(prompt="hello", **GREEDY)
    assert made.id.startswith("cmpl-")
    assert (made.object, made.model) == ("text_completion", "tiny")
    (choice,) = made.choices
    assert (choice.index, choice.text, choice.finish_reason) == (0, wanted.text, wanted.finish_reason)
    assert choice.logprobs is None
    used = (made.usage.prompt_tokens, made.usage.completion_tokens, made.usage.total_tokens)
    assert used == (5, len(wanted.output), 5 + len(wanted.output))


@pytest.mark.parametrize("prompt", [["ab", "hello"], [[0, 1], [7, 4, 11, 11, 14]]])
def test_several_prompts_and_texts_for_each(served, client, prompt):
    made = client.completions.create(prompt=prompt, n=2, max_tokens=6, **GREEDY)
    assert [each.index for each in made.choices] == [0, 1, 2, 3]
    texts = [_wanted(served, text, max_tokens=6).text for text in ("ab", "hello")]
    assert [each.text for each in made.choices] == [texts[0], texts[0], texts[1], texts[1]]
    assert made.usage.prompt_tokens == 7


def test_tokens_without_a_list_around_them_are_one_prompt(served, client):
    made = client.completions.create(prompt=[7, 4, 11, 11, 14], **GREEDY)
    assert made.choices[0].text == _wanted(served, "hello").text


def test_a_seed_decides_the_text_and_n_gives_different_ones(client):
    asked = {"model": "tiny", "prompt": "hello", "temperature": 1.2, "seed": 3, "n": 3, "max_tokens": 12}
    one, two = (client.completions.create(**asked) for _ in range(2))
    assert [each.text for each in one.choices] == [each.text for each in two.choices]
    assert len({each.text for each in one.choices}) == 3


def test_echo_with_log_probabilities_as_lm_eval_reads_it(served):
    body = {
        "prompt": [[7, 4, 11, 11, 14]],
        "max_tokens": 1,
        "logprobs": 1,
        "echo": True,
        "temperature": 0,
        "seed": 1234,
    }
    found = served.post("/v1/completions", body).json()["choices"][0]
    wanted = _wanted(served, "hello", max_tokens=1, logprobs=1, prompt_logprobs=True)
    scores = [*wanted.prompt_scores, *wanted.scores]
    logprobs = found["logprobs"]
    assert logprobs["tokens"] == list("hello" + wanted.text)
    assert found["text"] == "hello" + wanted.text
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    assert logprobs["token_logprobs"][1:] == pytest.approx([each.logprob for each in scores[1:]], abs=1e-6)
    assert logprobs["text_offset"] == [*range(6)]
    for value, tops, score in zip(
        logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], scores[1:], strict=True
    ):
        # lm-eval: a token is the greedy one if its number equals the largest, to the last bit.
        assert (value == max(tops.values())) == (score.token == score.top[0][0])
        assert Letters().decode([score.token]) in tops


def test_log_probabilities_without_echo_and_tokens_as_ids(served):
    body = {"prompt": "hello", "max_tokens": 3, "logprobs": 2, "temperature": 0, "return_tokens_as_token_ids": True}
    logprobs = served.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    wanted = _wanted(served, "hello", max_tokens=3, logprobs=2)
    assert logprobs["tokens"] == [f"token_id:{token}" for token in wanted.output]
    assert logprobs["token_logprobs"] == pytest.approx([each.logprob for each in wanted.scores], abs=1e-6)
    assert [len(each) for each in logprobs["top_logprobs"]] == [2, 2, 2]
    assert logprobs["text_offset"] == [5, 6, 7]


def test_a_prompt_is_scored_without_generating(served):
    found = served.post("/v1/completions", {"prompt": "hello", "max_tokens": 0, "echo": True, "logprobs": 0}).json()
    assert found["choices"][0]["text"] == "hello"
    assert len(found["choices"][0]["logprobs"]["tokens"]) == 5
    assert found["usage"]["completion_tokens"] == 0


def test_stop_strings_penalties_and_biases(served, client):
    wanted = _wanted(served, "hello", max_tokens=12).text
    stop = wanted[3:5]
    made = client.completions.create(prompt="hello", max_tokens=12, stop=[stop, "none"], **GREEDY)
    assert (made.choices[0].text, made.choices[0].finish_reason) == (wanted[: wanted.find(stop)], "stop")
    made = client.completions.create(prompt="hello", max_tokens=4, logit_bias={"9": 100}, **GREEDY)
    assert made.choices[0].text == "jjjj"
    body = {"prompt": "hello", "max_tokens": 4, "temperature": 0, "logit_bias": {"9": 9}, "presence_penalty": 2}
    assert served.post("/v1/completions", body).status_code == 200


def test_a_stream_gives_the_same_text(client, served):
    wanted = _wanted(served, "hello", max_tokens=9)
    asked = {"prompt": "hello", "max_tokens": 9, "stream": True, "logprobs": 1, "echo": True, **GREEDY}
    chunks = list(client.completions.create(**asked, stream_options={"include_usage": True}))
    *parts, last = chunks
    assert "".join(each.choices[0].text for each in parts) == "hello" + wanted.text
    assert [each.choices[0].finish_reason for each in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1].choices[0].finish_reason == "length"
    assert (last.choices, last.usage.completion_tokens) == ([], 9)
    assert len(parts) > 3
    assert len({each.id for each in chunks}) == 1


def test_a_stream_ends_with_done(served):
    body = {"prompt": "ab", "max_tokens": 2, "stream": True, "n": 2, "seed": 1}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert {each["choices"][0]["index"] for each in chunks} == {0, 1}
    assert all("usage" not in each for each in chunks)


def test_a_chat(served, client):
    messages = [{"role": "user", "content": "hi"}, {"role": "bot", "content": [{"type": "text", "text": "ho"}]}]
    wanted = _wanted(served, "u hi b ho a ", max_tokens=7, logprobs=2)
    made = client.chat.completions.create(messages=messages, max_tokens=7, logprobs=True, top_logprobs=2, **GREEDY)
    assert (made.id[:9], made.object) == ("chatcmpl-", "chat.completion")
    (choice,) = made.choices
    assert (choice.message.role, choice.message.content) == ("assistant", wanted.text)
    assert choice.finish_reason == wanted.finish_reason
    assert [each.logprob for each in choice.logprobs.content] == pytest.approx(
        [each.logprob for each in wanted.scores], abs=1e-6
    )
    assert [len(each.top_logprobs) for each in choice.logprobs.content] == [2] * len(wanted.output)
    assert made.usage.prompt_tokens == 12
    asked = {"messages": messages, "max_completion_tokens": 7, "stream": True, **GREEDY}
    chunks = list(client.chat.completions.create(**asked))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].object == "chat.completion.chunk"
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == wanted.text


def test_a_chat_without_max_tokens_goes_to_the_context(client):
    made = client.chat.completions.create(messages=[{"role": "user", "content": "hi"}], **GREEDY)
    assert made.usage.total_tokens <= 64
    assert made.choices[0].finish_reason in ("stop", "length")


BAD = {
    "no prompt": ({}, "prompt: field required"),
    "no object": ([1], "the body must be a JSON object"),
    "number": ({"prompt": 5}, "prompt"),
    "empty": ({"prompt": []}, "prompt must not be empty"),
    "mixed": ({"prompt": ["a", 1]}, "prompt"),
    "token": ({"prompt": [53]}, "outside the vocabulary of 53"),
    "negative token": ({"prompt": [-1]}, "outside the vocabulary of 53"),
    "long": ({"prompt": "a" * 64}, "a context of 64"),
    "temperature": ({"prompt": "a", "temperature": -1}, "temperature"),
    "temperature word": ({"prompt": "a", "temperature": "hot"}, "temperature"),
    "top_p": ({"prompt": "a", "top_p": 0}, "top_p"),
    "n": ({"prompt": "a", "n": 0}, "n:"),
    "max_tokens": ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
    "max_tokens fraction": ({"prompt": "a", "max_tokens": 1.5}, "max_tokens"),
    "logprobs": ({"prompt": "a", "logprobs": -1}, "logprobs"),
    "bias": ({"prompt": "a", "logit_bias": {"x": 1}}, "expected token numbers, not 'x'"),
    "bias token": ({"prompt": "a", "logit_bias": {"99": 1}}, "logit_bias"),
    "stop": ({"prompt": "a", "stop": 5}, "stop"),
    "best_of": ({"prompt": "a", "best_of": 3}, "best_of=3 is not supported"),
    "suffix": ({"prompt": "a", "suffix": "b"}, "suffix is not supported"),
    "stream": ({"prompt": "a", "stream": "yes"}, "stream"),
    "penalty": ({"prompt": "a", "presence_penalty": 3}, "presence_penalty"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_is_one_line(served, case):
    body, words = BAD[case]
    answer = served.post("/v1/completions", body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert words in error["message"]
    assert "\n" not in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 5000, b'{"prompt": "a", "temperature": NaN}', b"null"])
def test_a_body_that_is_not_json(served, body):
    answer = httpx.post(f"{served.url}/v1/completions", content=body, timeout=60)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "JSON" in message or "is nested deeper than 64 levels" in message


def test_other_answers_than_200(served):
    assert served.post("/v1/completions", {"prompt": "a", "model": "other"}).status_code == 404
    assert served.post("/v1/nothing", {}).status_code == 404
    assert httpx.get(f"{served.url}/v1/completions", timeout=60).status_code == 405
    assert httpx.post(f"{served.url}/v1/completions", content=b"x" * 30_000, timeout=60).status_code == 413
    assert served.post("/v1/chat/completions", {"messages": []}).status_code == 400
    assert served.post("/v1/chat/completions", {"messages": [{"role": "user"}], "top_logprobs": 21}).status_code == 400


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (
            {"type": "image_url", "image_url": {"url": "data:,"}},
            "are supported, not 'image_url'",
        ),
        ({"type": "input_audio", "input_audio": {}}, "not 'input_audio'"),
        ({"type": "text"}, "parts of type text with a text"),
        ({"type": "text", "text": 5}, "parts of type text with a text"),
    ],
)
def test_parts_of_a_message_that_are_no_text_are_refused(served, part, words):
    messages = [{"role": "user", "content": [{"type": "text", "text": "hello"}, part]}]
    answer = served.post("/v1/chat/completions", {"messages": messages})
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "messages"
    messages[0]["content"][1] = {"type": "text", "text": "you"}
    assert served.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1}).status_code == 200


def test_unknown_fields_are_ignored(served):
    assert served.post("/v1/completions", {"prompt": "a", "guided_regex": "x", "max_tokens": 1}).status_code == 200


def test_tokenizer_routes(served):
    assert served.post("/tokenize", {"prompt": "hello"}).json()["tokens"] == [7, 4, 11, 11, 14]
    assert served.post("/detokenize", {"tokens": [7, 4]}).json() == {"prompt": "he"}
    assert served.post("/detokenize", {"tokens": [99]}).status_code == 400
    assert served.post("/tokenize", {"prompt": 3}).status_code == 400
    info = httpx.get(f"{served.url}/tokenizer_info", timeout=60).json()
    assert (info["eos_token"], info["eos_token_id"]) == ("Z", 52)
    served.loop.session = replace(served.loop.session, eos=(52, 3))
    info = httpx.get(f"{served.url}/tokenizer_info", timeout=60).json()
    assert (info["eos_token"], info["eos_token_ids"]) == ("Z", [52, 3])
    served.loop.session = replace(served.loop.session, eos=(52,))


def test_the_key_guards_what_generates(serve):
    server = serve(api_key="secret")
    assert server.post("/v1/completions", {"prompt": "a"}).status_code == 401
    assert server.post("/v1/completions", {"prompt": "a"}, headers={"Authorization": "Bearer x"}).status_code == 401
    asked = {"prompt": "a", "max_tokens": 1}
    assert server.post("/v1/completions", asked, headers={"Authorization": "Bearer secret"}).status_code == 200
    assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200
    assert server.put({"prompts": ["a"], "tokens_to_generate": 1}).json() == {
        "message": "the API key is missing or wrong; send Authorization: Bearer KEY"
    }
    assert len(ask(f"{server.url}/api", "ab", 1, 30, "secret")) == 3


def test_overload_is_429_and_time_is_limited(serve):
    server = serve(num_slots=1, max_waiting=1, timeout_s=0.001)
    assert server.post("/v1/completions", {"prompt": ["a", "b", "c"]}).status_code == 400  # never fits
    server.loop.max_waiting, body = 0, {"prompt": "a", "max_tokens": 60, "ignore_eos": True, "stream": True}
    goes_on, step = threading.Event(), server.loop.engine.step
    server.loop.engine.step = lambda: step() if goes_on.wait(60) else []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60):
        assert server.post("/v1/completions", {"prompt": "a"}).status_code == 429
        goes_on.set()
    assert _is_idle(server)
    slow = server.post("/v1/completions", {"prompt": "a", "max_tokens": 50, "ignore_eos": True})
    assert slow.status_code == 504
    assert "--request-timeout" in slow.json()["error"]["message"]


def _is_idle(server) -> bool:
    deadline = threading.Event()
    return any(server.loop.num_requests == 0 or deadline.wait(0.05) for _ in range(1200))


def test_clients_that_leave_make_room(serve):
    server = serve(num_slots=2)
    body = {"prompt": "a", "max_tokens": 60, "ignore_eos": True, "stream": True, "n": 2}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
        next(answer.iter_lines())
    assert _is_idle(server)

    async def leave() -> None:
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.TimeoutException):
                await client.post(f"{server.url}/v1/completions", json={**body, "stream": False}, timeout=0.01)

    asyncio.run(leave())
    assert _is_idle(server)
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200


def test_many_clients_get_their_own_answers(served):
    prompts = ["hello", "a", "abc", "zebra", "QUX", "ho ho", "mn", "pq r"]
    wanted = {prompt: _wanted(served, prompt).text for prompt in prompts}
    found: list[tuple[str, str]] = []

    def ask(prompt: str) -> None:
        text = served.post("/v1/completions", {"prompt": prompt, "temperature": 0}).json()["choices"][0]["text"]
        found.append((prompt, text))

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 24
    assert all(wanted[prompt] == text for prompt, text in found)


def test_metrics_and_the_page(served):
    served.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    text = httpx.get(f"{served.url}/metrics", timeout=60).text
    assert 'megads_requests_total{route="/v1/completions",status="200"}' in text
    assert "megads_generated_tokens" in text
    assert "<title>megads</title>" in httpx.get(served.url, timeout=60).text


def test_the_page_asks_for_a_text_in_a_real_browser(serve, tmp_path):
    from tests.browser import browse

    server = serve(template="{% for each in messages %}{{ each.content }} {% endfor %}")
    # Time is virtual in this browser: it does not wait for the parts of a stream.
    seen = browse(f"{server.url}/", tmp_path, "--dump-dom", address="hello%20you")
    assert '<span id="model">tiny</span>' in seen
    assert '<div id="text">hello you<b>' in seen
    assert _is_idle(server)
    seen = browse(f"{server.url}/?chat", tmp_path, "--dump-dom", address="what%20now")
    assert '<span id="what">Chat with</span> <span id="model">tiny</span>' in seen
    assert '<div id="text">what now\n<b>' in seen
    assert _is_idle(server)
    metrics = httpx.get(f"{server.url}/metrics", timeout=60).text
    for route in ("/v1/completions", "/v1/chat/completions"):
        assert f'megads_requests_total{{route="{route}",status="200"}} 1.0' in metrics


def test_a_t5_answers_prompts(serve):
    runner = their_t5.runner_of(their_t5.folder_of("t5-v1.1"))
    served = serve(session=Session(runner, runner.groups, Letters(), (52,), ""))
    prompts = ["hello", "a", "some Words"]
    body = {"prompt": prompts, "max_tokens": 7, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    made = served.post("/v1/completions", body).json()
    for prompt, choice in zip(prompts, made["choices"], strict=True):
        wanted = their_t5.greedy("t5-v1.1", Letters().encode(prompt), 7)
        assert choice["text"] == Letters().decode(wanted)
        assert choice["logprobs"]["tokens"] == list(choice["text"])
        assert choice["logprobs"]["text_offset"] == list(range(7))
    streamed = served.post("/v1/completions", {**body, "prompt": "hello", "stream": True}).text
    pieces = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    assert "".join(each["choices"][0]["text"] for each in pieces) == made["choices"][0]["text"]
    for words, body in (("echo is not supported", {"prompt": "a", "echo": True}), ("has no token", {"prompt": ""})):
        refused = served.post("/v1/completions", body)
        assert refused.status_code == 400
        assert words in refused.json()["error"]["message"]
    assert served.put({"prompts": ["a"], "tokens_to_generate": 2}).status_code == 400
    assert served.post("/tokenize", {"prompt": "ab"}).json()["tokens"] == [0, 1]
    assert httpx.get(f"{served.url}/tokenizer_info", timeout=60).json()["eos_token_id"] == 52
