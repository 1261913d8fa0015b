import pytest

from megads.data.qa.prompts import STYLES, SYSTEM, prompt_of, prompt_tokens, style_named, style_of
from megads.data.qa.questions import Question
from megads.errors import ConfigError

QUESTION = Question("Who?", ("Ada",), ("title: T, source: one", "title: , source: two"), "f:3")


def test_the_parts_of_a_prompt():
    assert prompt_of(QUESTION, STYLES["short"], 1) == (
        f"{SYSTEM}\n\ntitle: T, source: one\n\nUser: Reply with a few words. Who?\n\nAssistant: The answer is"
    )
    assert prompt_of(QUESTION, STYLES["long"], system="") == ("User: Reply in full. Who?\n\nAssistant:")
    assert prompt_of(QUESTION, STYLES["dialogue"], 5, system="S") == (
        "S\n\ntitle: T, source: one\n\ntitle: , source: two\n\nWho?"
    )


def test_braces_of_a_question_are_text():
    assert "set {x} of {0}" in prompt_of(Question("set {x} of {0}"), STYLES["yes-no"])


@pytest.mark.parametrize(
    ("path", "style"),
    [
        ("nq/nq_QA_dev.json", "short"),
        ("data/squad1.1/squad1.1_QA_train.json", "short"),
        ("NARRATIVEQA_QA_test.json.gz", "short"),
        ("BoolQ_QA_dev.jsonl", "yes-no"),
        ("race_QA_train.json", "choice"),
        ("oasst_QA_train.json", "dialogue"),
        ("eli5_QA_train.json", "long"),
        ("drop.jsonl", "short"),
        ("own.json", "long"),
    ],
)
def test_the_name_of_a_file_says_how_its_questions_are_asked(path, style):
    assert style_of(path) == style


def test_contexts_are_cut_and_nothing_else():
    encode = lambda text: list(text.encode())  # noqa: E731
    style = STYLES["short"]
    whole = prompt_tokens(QUESTION, style, encode, 4096, 2, "S")
    assert bytes(whole).decode() == prompt_of(QUESTION, style, 2, "S")
    bare = len(prompt_of(QUESTION, style, 0, "S"))
    for room in (bare, bare + 7, len(whole) - 1, len(whole)):
        cut = prompt_tokens(QUESTION, style, encode, room, 2, "S")
        assert len(cut) == room
        shown = prompt_of(QUESTION, style, 2, "S")[len("S\n\n") :][: room - bare]
        assert bytes(cut).decode() == "S\n\n" + shown + prompt_of(QUESTION, style, 0, "")
    with pytest.raises(ConfigError, match=rf"f:3: the question has {bare} tokens with its system line, and 20 fit"):
        prompt_tokens(QUESTION, style, encode, 20, 2, "S")


def test_an_unknown_style_names_those_that_exist():
    assert style_named("yes-no", "--style ") is STYLES["yes-no"]
    with pytest.raises(ConfigError, match="--style brief: expected one of short, yes-no, choice, long, dialogue"):
        style_named("brief", "--style ")
