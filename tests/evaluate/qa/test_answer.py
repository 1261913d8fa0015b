import pytest

from megads.comm.grid import Grid
from megads.data.qa.prompts import STYLES, Asking, prompt_of
from megads.data.qa.questions import Question
from megads.errors import ConfigError
from megads.evaluate.qa.answer import answer, prompts_of
from megads.inference.generate import Prompt, generate
from megads.inference.sampling import Sampling
from megads.inference.session import Session
from tests.inference.letters import Letters
from tests.inference.theirs import runner_of


@pytest.fixture(scope="module")
def session():
    runner = runner_of("llama3", Grid(), 0, num_slots=2)
    return Session(runner, runner.groups, Letters(), (52,), "")


QUESTIONS = [Question("abc", contexts=("gh ij", "kl")), Question("de f")]


def test_answers_are_those_of_the_prompts(session):
    asking = Asking("dialogue", 1, "")
    sampling = Sampling(temperature=0.0, max_tokens=6, ignore_eos=True)
    session.tokenizer.encode("abc")
    questions = [Question("abc"), Question("de f")]  # the letters have no line breaks, so none has contexts
    found = answer(session, questions, asking, sampling)
    same = generate(session, [Prompt("abc"), Prompt("de f")], sampling)
    assert [each["text"] for each in found] == [each["text"].strip() for each in same]
    assert [(each["id"], each["question"]) for each in found] == [(0, "abc"), (1, "de f")]


class _Bytes(Letters):
    """Tokens are bytes, modulo the vocabulary."""

    def encode(self, text: str) -> list[int]:
        return [each % 53 for each in text.encode()]


def test_a_prompt_leaves_room_for_its_answer(session):
    with_bytes = Session(session.runner, session.groups, _Bytes(), (52,), "")
    asking = Asking("dialogue", 2, "")
    whole = _Bytes().encode(prompt_of(QUESTIONS[0], STYLES["dialogue"], 2, ""))
    room = session.runner.context
    assert [list(each.tokens) for each in prompts_of(with_bytes, QUESTIONS[:1], asking, 4)] == [whole]
    cut = prompts_of(with_bytes, QUESTIONS[:1], asking, room - len(whole) + 5)[0].tokens
    assert list(cut) == whole[: len(whole) - 3 - 5] + whole[-3:]
    with pytest.raises(ConfigError, match=f"has 3 tokens with its system line, and {2} fit"):
        prompts_of(with_bytes, QUESTIONS[:1], asking, room - 2)
