import json

import pytest

from megads.data.qa.questions import Question
from megads.errors import DataError
from megads.evaluate.qa.predictions import clean, read_predictions, score


def test_files_of_predictions(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\n Answer: three\n")
    (tmp_path / "a.jsonl").write_text(
        "\n".join(map(json.dumps, [{"id": 0, "text": "one"}, {"pred": ""}, {"prediction": "x"}])) + "\n\n"
    )
    assert read_predictions(str(tmp_path / "a.txt")) == ["one", "", " Answer: three"]
    assert read_predictions(str(tmp_path / "a.jsonl")) == ["one", "", "x"]


def test_what_surrounds_an_answer_is_dropped():
    assert clean(" Answer: Ada<|endoftext|>More") == "Ada"
    assert clean("A: Ada") == "Ada"
    assert clean("a: b answer: c") == "b answer: c"
    assert clean("Alan") == "Alan"


def test_scores_by_hand():
    questions = [
        Question("1", ("red fox", "fox")),
        Question("2", ("four",)),
        Question("3"),
        Question("4", ("no_passages_used", "none")),
        Question("5", ("never asked",)),
    ]
    found = score(["Fox.", "it is four", "anything", "none"], questions, "p.txt")
    # First answers: "fox" of "red fox" 2/3 (precision 1, recall 1/2); "four" of 3 words 1/2; the rest has none.
    assert found["questions"] == 4
    assert found["scored"] == 2
    assert found["f1"] == pytest.approx((2 / 3 + 1 / 2) / 2, abs=1e-15)
    assert found["precision"] == pytest.approx((1 + 1 / 3) / 2, abs=1e-15)
    assert found["recall"] == pytest.approx((1 / 2 + 1) / 2, abs=1e-15)
    assert found["f1_best"] == pytest.approx((1 + 1 / 2 + 1) / 3, abs=1e-15)
    assert found["exact_match"] == pytest.approx(2 / 3, abs=1e-15)  # fox and none of three


def test_wrong_files_are_one_line(tmp_path):
    path = tmp_path / "p.jsonl"
    for content, problem in (
        ("", "has no predictions"),
        ("[]", ":1: expected an object with"),
        ('{"answer": "x"}', ":1: expected an object with"),
        ('{"text": 3}', ":1: expected an object with"),
    ):
        path.write_text(content)
        with pytest.raises(DataError, match=problem):
            read_predictions(str(path))
    with pytest.raises(DataError, match="p: has 2 predictions, and the file of questions 1; pass the file"):
        score(["a", "b"], [Question("1", ("a",))], "p")
    with pytest.raises(DataError, match="p: none of the 1 question has an answer"):
        score(["a"], [Question("1")], "p")
