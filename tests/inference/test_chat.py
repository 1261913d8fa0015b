"""Prompts that are questions of a chat."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megads.comm.grid import Grid
from megads.data.chat.folder_template import ChatTemplate
from megads.errors import ConfigError
from megads.inference.chat import as_chat
from megads.inference.generate import Prompt, generate, stream
from megads.inference.sampling import Sampling
from megads.inference.session import Session
from tests.inference.letters import Letters
from tests.inference.theirs import runner_of


@pytest.fixture(scope="module")
def session():
    runner = runner_of("llama3", Grid(), 0, num_slots=2)
    template = ChatTemplate(None, "{% for m in messages %}{{ 'x' + m.content + 'y' }}{% endfor %}")
    return Session(runner, runner.groups, Letters(), (52,), "", chat=template)


def test_a_question_is_put_in_the_form_of_the_model(session):
    asked = as_chat(session, Prompt("ab", 7, {"max_tokens": 5}))
    assert list(asked.tokens) == Letters().encode("xaby")
    assert (asked.text, asked.id, asked.own) == ("ab", 7, {"max_tokens": 5})
    given = Sampling(max_tokens=5, temperature=0.0)
    (wanted,) = generate(session, [Prompt("xaby")], given)
    (found,) = generate(session, [asked], given)
    assert (found["text"], found["prompt"]) == (wanted["text"], "ab")
    assert "".join(stream(session, "ab", given, tokens=asked.tokens)) == wanted["text"]


def test_a_model_without_a_form_is_refused(session):
    with pytest.raises(ConfigError, match="--chat: the model has learnt no chats and its tokenizer has no chat templ"):
        as_chat(replace(session, chat=None), Prompt("a"))
