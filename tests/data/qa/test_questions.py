import gzip
import json

import pytest

from megads.data.qa.questions import context_text, is_question, question_of, read_questions
from megads.errors import DataError


def test_every_form_of_answers_and_contexts():
    long = {"question": "Q?", "longform_answer": " L "}
    assert question_of(long, "f:1").answers == ("L",)
    forms = [
        ("a", ("a",)),
        (["a ", "b"], ("a", "b")),
        ([{"text": " a"}], ("a",)),
        (7, ("7",)),
        ([], ()),
        (None, ()),
    ]
    for value, answers in forms:
        assert question_of({"question": "Q?", "answer": value}, "f:1").answers == answers
    both = question_of({"question": "Q?", "answers": ["x"], "answer": "y"}, "f:1")
    assert both.answers == ("x",)
    assert question_of({"question": "Q?"}, "f:1").answers == ()

    passages = {"ctxs": [{"title": "T", "text": "one"}, {"text": "two", "title": None}, "three"]}
    assert question_of({"question": "Q?", **passages}, "f:1").contexts == (
        "title: T, source: one",
        "title: , source: two",
        "title: , source: three",
    )
    assert question_of({"question": "Q?", "sub-paragraphs": "p"}, "f:1").contexts == (context_text("", "p"),)
    assert question_of({"question": "Q?", "sub_paragraph": "p"}, "f:1").contexts == (context_text("", "p"),)
    two = {"question": "Q?", "sub-paragraphs": ["T", "p", "more"]}
    assert question_of(two, "f:1").contexts == ("title: T, source: p",)


def test_options_follow_the_question():
    record = {"question": "Which?", "qa_type": "multi_choice_qa", "multichoice_options": ["red", "blue", "green"]}
    assert question_of(record, "f:1").text == "Which?\n(A) red (B) blue (C) green"


def test_a_list_and_lines_are_read_alike(tmp_path):
    records = [{"question": f"Q{i}?", "answer": f"a{i}"} for i in range(3)]
    (tmp_path / "nq_QA_dev.json").write_text(json.dumps(records, indent=1))
    (tmp_path / "lines.jsonl").write_text("\n\n".join(map(json.dumps, records)))
    with gzip.open(tmp_path / "lines.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(each) + "\n" for each in records)
    found = {name: read_questions(str(tmp_path / name)) for name in ("nq_QA_dev.json", "lines.jsonl", "lines.jsonl.gz")}
    for questions in found.values():
        assert [(each.text, each.answers) for each in questions] == [(f"Q{i}?", (f"a{i}",)) for i in range(3)]
    assert found["lines.jsonl"][1].where == f"{tmp_path}/lines.jsonl:3"
    assert found["nq_QA_dev.json"][1].where == f"{tmp_path}/nq_QA_dev.json: item 2"
    assert is_question(records[0])
    assert not is_question({"prompt": "x"})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "has no questions; expected"),
        ("[]", "has no questions; expected"),
        ("[1]", "item 1 is not an object"),
        ("[{", "is not JSON (line 1"),
        ("{", ":1: is not JSON (line 1"),
        ('"text"', ":1: expected an object"),
        ('{"q": 1}', ":1: question is None; expected"),
        ('{"question": " "}', ":1: question is ' '; expected"),
        ('{"question": "Q", "answer": {"t": 1}}', ":1: answer holds {'t': 1}; expected a text"),
        ('{"question": "Q", "answers": [true]}', ":1: answers holds True; expected a text"),
        ('{"question": "Q", "ctxs": "text"}', ":1: ctxs is 'text'; expected a list"),
        ('{"question": "Q", "ctxs": [{"title": "T"}]}', ":1: ctxs holds {'title': 'T'}; expected"),
        ('{"question": "Q", "ctxs": [{"title": 1, "text": "x"}]}', ":1: ctxs holds {'title': 1, "),
        ('{"question": "Q", "sub-paragraphs": ["T"]}', ":1: sub-paragraphs is ['T']; expected a text, or"),
        ('{"question": "Q", "qa_type": "multi_choice_qa"}', ":1: multichoice_options is None; expected two"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(content, problem, tmp_path):
    path = tmp_path / "questions.json"
    path.write_text(content)
    with pytest.raises(DataError) as error:
        read_questions(str(path))
    assert problem in str(error.value)
    assert str(error.value).startswith(str(path))
