"""lm-eval's own clients of a server, on our server: the numbers of its backend ``hf``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.evaluate.lm_eval.test_model import same
from tests.evaluate.lm_eval.tiny import BOS, EOS, TASKS, TEMPLATE, model_folder, run, session_of
from tests.inference.server.conftest import Served, running

CONTEXT = 64


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch, running(TEMPLATE, session=session_of(model_folder("llama3"))) as server:
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield server


def _client(name: str, served: Served, path: str, **more: Any) -> Any:
    from lm_eval.api.registry import get_model

    return get_model(name)(model="tiny", base_url=f"{served.url}{path}", max_length=CONTEXT, max_retries=1, **more)


def _only(results: dict[str, Any], *tasks: str) -> dict[str, Any]:
    return {part: {task: results[part][task] for task in tasks} for part in ("results", "samples")}


@pytest.mark.parametrize(
    ("settings", "tasks"),
    [
        ({"batch_size": 4}, TASKS[:3]),
        ({"num_concurrent": 4, "batch_size": 8}, TASKS[1:2]),
        ({"tokenized_requests": False, "batch_size": 8}, TASKS[1:2]),
    ],
)
def test_local_completions_scores_as_the_backend_hf(served, hf, settings, tasks):
    model = _client("local-completions", served, "/v1/completions", **settings)
    assert model.tokenizer_backend == "remote"
    # The client takes one token from the context for what it has the server generate, and one more for its answer.
    same(run(model, *tasks), _only(hf("llama3", CONTEXT - 2), *tasks))


def test_local_completions_generates_as_the_backend_hf(served, hf):
    model = _client("local-completions", served, "/v1/completions", batch_size=4)
    same(run(model, "tiny_answer"), _only(hf("llama3", CONTEXT - 1), "tiny_answer"))


def test_local_chat_completions_generates_as_the_backend_hf(served, hf):
    model = _client("local-chat-completions", served, "/v1/chat/completions")
    found = run(model, "tiny_answer", apply_chat_template=True, samples={"tiny_answer": list(range(5))})
    wanted = hf("llama3", CONTEXT, chat=True)
    texts = [each["filtered_resps"] for each in found["samples"]["tiny_answer"]]
    assert texts == [each["filtered_resps"] for each in wanted["samples"]["tiny_answer"][:5]]
    assert any(text[0] for text in texts)


def test_tokens_around_a_text_are_those_that_a_client_asks_for():
    session = session_of(model_folder("llama3", begins=True))
    with running(TEMPLATE, session=session) as server:
        begin, (a, b) = session.tokenizer.specials.bos, session.tokenizer.encode_plain("ab")
        assert server.post("/tokenize", {"prompt": "ab"}).json()["tokens"] == [begin, a, b]
        plain = server.post("/tokenize", {"prompt": "ab", "add_special_tokens": False}).json()
        assert plain["tokens"] == [a, b]
        assert server.post("/tokenize", {"prompt": "ab", "add_special_tokens": 1}).status_code == 400
        info = httpx.get(f"{server.url}/tokenizer_info", timeout=60).json()
        assert (info["bos_token"], info["eos_token"], info["eos_token_ids"]) == (BOS, EOS, [52])
        used = [
            server.post(path, {"max_tokens": 1, **body}).json()["usage"]["prompt_tokens"]
            for path, body in (
                ("/v1/completions", {"prompt": "ab"}),
                ("/v1/completions", {"prompt": "ab", "add_special_tokens": False}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "ab"}]}),
            )
        ]
        assert used == [3, 2, len("u ab a ")]


def test_special_tokens_are_no_text_unless_asked_for_and_still_stop_it(served):
    session = served.loop.session
    begins = session.tokenizer.specials.bos is None and session.tokenizer.inner.token_to_id(BOS)
    body = {"prompt": "ab", "max_tokens": 3, "temperature": 0, "logit_bias": {str(begins): 100}}
    text = served.post("/v1/completions", body).json()["choices"][0]["text"]
    whole = served.post("/v1/completions", {**body, "skip_special_tokens": False}).json()["choices"][0]["text"]
    assert (text, whole) == ("", 3 * BOS)
    made = served.post("/v1/completions", {**body, "stop": [BOS]}).json()
    assert (made["choices"][0]["finish_reason"], made["usage"]["completion_tokens"]) == ("stop", 1)
