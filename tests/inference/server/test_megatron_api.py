"""``PUT /api``: the fields, defaults and limits of Megatron-LM's server."""

from __future__ import annotations

import pytest

from megads.inference.beam import beam_search
from megads.inference.server.megatron_api import parse
from megads.inference.server.requests import BadRequest
from tests.inference.letters import Letters
from tests.inference.server.test_openai_api import _wanted


def test_defaults():
    fields = parse({"prompts": ["a"]})
    assert fields["tokens_to_generate"] == 64
    assert (fields["temperature"], fields["top_k"], fields["top_p"]) == (1.0, 0, 0.0)
    assert fields["length_penalty"] == 1.0
    assert not any(fields[name] for name in ("logprobs", "add_BOS", "stop_on_eol", "no_log", "beam_width"))


BAD = {
    "none": ({}, "prompts"),
    "text": ({"prompts": "a"}, "prompts must be a list of strings"),
    "empty": ({"prompts": []}, "prompts must have 1 to 128 strings, it has 0"),
    "many": ({"prompts": ["a"] * 129}, "it has 129"),
    "max_len": ({"prompts": ["a"], "max_len": 3}, "max_len is not a field; use tokens_to_generate"),
    "sentences": ({"sentences": ["a"]}, "sentences is not a field; use prompts"),
    "tokens": ({"tokens_to_generate": -1}, "tokens_to_generate must be an integer of 0 or more"),
    "tokens text": ({"tokens_to_generate": "5"}, "tokens_to_generate must be an integer"),
    "tokens true": ({"tokens_to_generate": True}, "tokens_to_generate must be an integer"),
    "zero": ({"tokens_to_generate": 0}, "needs logprobs=true"),
    "logprobs": ({"logprobs": 1}, "logprobs must be a boolean"),
    "temperature": ({"temperature": 0}, "temperature must be above 0"),
    "hot": ({"temperature": 101}, "temperature must be a number from 0 to 100"),
    "top_k": ({"top_k": 1001}, "top_k must be an integer from 0 to 1000"),
    "top_p": ({"top_p": 1.1}, "top_p must be a number from 0 to 1"),
    "both": ({"top_p": 0.5, "top_k": 5}, "set one of them"),
    "decay": ({"top_p_decay": 0.5}, "top_p_decay needs top_p"),
    "bound": ({"top_p": 0.5, "top_p_bound": 0.6}, "top_p_bound must be at most top_p"),
    "seed": ({"random_seed": -2}, "random_seed must be an integer"),
    "width": ({"beam_width": 0}, "beam_width must be an integer of 1 or more"),
    "stop": ({"stop_token": 1.5}, "stop_token must be an integer"),
    "penalty": ({"length_penalty": "x"}, "length_penalty must be a number"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_fields(case):
    body, words = BAD[case]
    with pytest.raises(BadRequest, match=words):
        parse(body if case in ("none", "text", "empty", "many", "sentences") else {"prompts": ["a"], **body})


def test_whole_numbers_are_accepted_for_fractions():
    fields = parse({"prompts": ["a"], "top_p": 1, "temperature": 2, "length_penalty": 0})
    assert (fields["top_p"], fields["temperature"], fields["length_penalty"]) == (1.0, 2.0, 0.0)


def test_greedy_texts_segments_and_log_probabilities(served):
    body = {"prompts": ["hello", "ab"], "tokens_to_generate": 6, "top_k": 1, "logprobs": True}
    found = served.put(body).json()
    wanted = [_wanted(served, text, max_tokens=6, logprobs=0, prompt_logprobs=True) for text in ("hello", "ab")]
    assert found["text"] == ["hello" + wanted[0].text, "ab" + wanted[1].text]
    assert ["".join(each) for each in found["segments"]] == found["text"]
    for prompt, scores, request in zip(body["prompts"], found["logprobs"], wanted, strict=True):
        expected = [each.logprob for each in [*request.prompt_scores[1:], *request.scores]]
        assert served.put({**body, "prompts": [prompt]}).json()["logprobs"] == [expected]
        # Products of two rows round otherwise than those of one; by how much depends on the CPU.
        assert scores == pytest.approx(expected, abs=5e-6)


def test_without_logprobs_they_are_null_and_a_seed_repeats_the_text(served):
    body = {"prompts": ["hello", "hello"], "tokens_to_generate": 10, "random_seed": 4}
    one, two = served.put(body).json(), served.put(body).json()
    assert one == two
    assert one["logprobs"] is None
    assert one["text"][0] != one["text"][1]


def test_zero_tokens_score_the_prompt(served):
    found = served.put({"prompts": ["hello"], "tokens_to_generate": 0, "logprobs": True}).json()
    assert found["text"] == ["hello"]
    assert len(found["logprobs"][0]) == 4


def test_beams(served):
    body = {"prompts": ["hello"], "tokens_to_generate": 6, "beam_width": 3, "length_penalty": 2, "stop_token": 7}
    found = served.put(body).json()
    runner = served.loop.session.runner
    fresh = type(runner)(runner.module, runner.groups, context=64, num_slots=3)
    options = {"width": 3, "max_tokens": 6, "eos": (7,), "length_penalty": 2.0}
    wanted = beam_search(fresh, Letters().encode("hello"), **options)
    assert found["scores"] == pytest.approx([each.score for each in wanted], abs=1e-5)
    texts = ["hello" + Letters().decode([token for token in each.output if token != 7]) for each in wanted]
    assert found["text"] == texts


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompts": ["a", "b"], "beam_width": 2}, "beam_width is for one prompt, not for 2"),
        ({"prompts": ["a"], "beam_width": 9}, "beam_width must be an integer from 1 to 4"),
        (
            {"prompts": ["a"], "beam_width": 2, "length_penalty": 1e308},
            "length_penalty must be a number from -10 to 10",
        ),
        (
            {"prompts": ["a"], "beam_width": 2, "tokens_to_generate": 0, "logprobs": True},
            "beam_width needs tokens_to_generate of 1 or more",
        ),
        ({"prompts": [""]}, "an empty prompt needs add_BOS=true"),
        ({"prompts": ["a"], "tokens_to_generate": 64}, "do not fit the context of 64 tokens"),
    ],
)
def test_requests_that_the_model_cannot_serve(served, body, words):
    answer = served.put(body)
    assert answer.status_code == 400
    assert words in answer.json()["message"]


def test_an_empty_prompt_with_bos_and_a_newline_stop(served):
    found = served.put({"prompts": [""], "tokens_to_generate": 3, "add_BOS": True, "top_k": 1})
    assert found.status_code == 200
    assert found.json()["text"][0].startswith("Z")
