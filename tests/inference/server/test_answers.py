"""Log-probabilities in OpenAI's form."""

from __future__ import annotations

from collections.abc import Sequence

from megads.inference.request import TokenScore
from megads.inference.server.answers import Answer, chat_logprobs, completion_logprobs, usage_of


class Halves:
    """A tokenizer with two tokens of the same text, as halves of characters are."""

    def decode(self, ids: Sequence[int]) -> str:
        return "".join({1: "a", 2: "\ufffd", 3: "\ufffd", 4: "bc"}[each] for each in ids)


SCORES = [
    TokenScore(4, None),
    TokenScore(2, -3.0, ((3, -0.5), (1, -1.0))),
    TokenScore(1, -0.25, ((1, -0.25), (2, -2.0))),
]


def test_the_token_is_among_the_tops_and_equal_texts_keep_the_most_likely():
    found = completion_logprobs(SCORES, Halves(), as_ids=False, offset=10)
    assert found["tokens"] == ["bc", "\ufffd", "a"]
    assert found["token_logprobs"] == [None, -3.0, -0.25]
    # Token 2 is not the greedy one: the number of its text is that of token 3, so that no reader takes it for it.
    assert found["top_logprobs"] == [None, {"\ufffd": -0.5, "a": -1.0}, {"a": -0.25, "\ufffd": -2.0}]
    assert found["text_offset"] == [10, 12, 13]


def test_tokens_as_ids_are_told_apart():
    found = completion_logprobs(SCORES[1:2], Halves(), as_ids=True)
    assert found["top_logprobs"] == [{"token_id:2": -3.0, "token_id:3": -0.5, "token_id:1": -1.0}]


def test_a_chat_s_log_probabilities_have_bytes():
    (entry,) = chat_logprobs(SCORES[2:], Halves(), as_ids=False)["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("a", -0.25, [97])
    assert [each["token"] for each in entry["top_logprobs"]] == ["a", "\ufffd"]


def test_whole_answers_and_parts():
    answer = Answer("chat.completion", "tiny")
    whole = answer.whole([{"index": 0}], usage_of(3, 2))
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    part, last = answer.chunk({"index": 0}), answer.chunk(None, usage_of(3, 2))
    assert (whole["object"], part["object"]) == ("chat.completion", "chat.completion.chunk")
    assert whole["id"] == part["id"] == last["id"]
    assert (last["choices"], "usage" in part) == ([], False)
