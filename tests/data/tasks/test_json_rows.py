"""A user's own task in JSON lines."""

import pytest

from megads.data.tasks.examples import Example
from megads.data.tasks.json_rows import read_json_rows
from megads.errors import DataError
from tests.data.tasks.files import write_json_rows


def test_labels_are_numbered_in_their_order(tmp_path):
    train = write_json_rows(tmp_path / "t.jsonl", [{"text": "a  b", "label": "yes"}, {"text": "c", "label": "no"}])
    valid = write_json_rows(tmp_path / "v.jsonl", [{"premise": "p", "hypothesis": "h", "label": "no"}])
    found = read_json_rows([train], [valid])
    assert found.classes == ("no", "yes")
    assert found.choices == 1
    assert [file.examples for file in found.files] == [
        [Example((("a b", None),), 1), Example((("c", None),), 0)],
        [Example((("p", "h"),), 0)],
    ]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [([10, 9, 2], ("2", "9", "10")), ([True, False], ("false", "true")), (["b", "a"], ("a", "b"))],
)
def test_numbers_are_sorted_as_numbers(tmp_path, labels, classes):
    train = write_json_rows(tmp_path / "t.jsonl", [{"text": "a", "label": label} for label in labels])
    assert read_json_rows([train], []).classes == classes


def test_choices_have_the_number_of_the_right_one(tmp_path):
    rows = [
        {"text": "t", "question": "Q?", "choices": ["a", "b"], "label": 1},
        {"text": "t", "choices": ["c", "d"], "label": 0},
    ]
    found = read_json_rows([write_json_rows(tmp_path / "t.jsonl", rows)], [])
    assert (found.classes, found.choices) == ((), 2)
    assert found.files[0].examples == [
        Example((("Q? a", "t"), ("Q? b", "t")), 1, True),
        Example((("c", "t"), ("d", "t")), 0, True),
    ]


GOOD = {"text": "a", "label": "x"}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([], "expected an object such as .*"),
        ({"text": "a"}, "label is None; expected a text, a whole number, true or false"),
        ({"text": "a", "label": 1.5}, "label is 1.5; expected a text, a whole number, true or false"),
        ({"text": " ", "label": "x"}, "text is ' '; expected a text"),
        ({"body": "a", "label": "x"}, "has body, label; expected label, and text; premise and hypothesis; .*"),
        ({"premise": "a", "label": "x"}, "hypothesis is None; expected a text"),
        ({"text": "a", "choices": ["b", "c"], "label": 0}, "has 2 choices, and .*:1 has none; all must be alike"),
        ({"choices": ["b"], "label": 0}, "choices are not two or more texts"),
    ],
)
def test_a_broken_row_is_refused_by_its_line(tmp_path, row, why):
    path = write_json_rows(tmp_path / "t.jsonl", [GOOD, row])
    with pytest.raises(DataError, match=f"^{path}:2: {why}$"):
        read_json_rows([path], [])


def test_labels_that_make_no_task_are_refused(tmp_path):
    one = write_json_rows(tmp_path / "t.jsonl", [GOOD, GOOD])
    with pytest.raises(DataError, match=f"^{one}:1: every label is 'x'; a task has at least two classes$"):
        read_json_rows([one], [])
    train = write_json_rows(tmp_path / "t.jsonl", [GOOD, {**GOOD, "label": "y"}])
    other = write_json_rows(tmp_path / "v.jsonl", [GOOD, {**GOOD, "label": "z"}])
    with pytest.raises(DataError, match=f"^{other}:2: label 'z' is not one of the training files', which are x, y$"):
        read_json_rows([train], [other])
    choices = write_json_rows(tmp_path / "c.jsonl", [{"text": "t", "choices": ["a", "b"], "label": 2}])
    with pytest.raises(DataError, match=f"^{choices}:1: label 2; expected the number of the right choice, 0 to 1$"):
        read_json_rows([choices], [])


def test_files_to_predict_need_no_labels(tmp_path):
    train = write_json_rows(tmp_path / "t.jsonl", [{"text": "a", "label": "y"}, {"text": "b", "label": "x"}])
    blind = write_json_rows(tmp_path / "b.jsonl", [{"text": "c"}, {"text": "d", "label": None}])
    found = read_json_rows([train], [], [blind, train])
    assert [(file.path, file.has_labels) for file in found.files] == [(train, True), (blind, False), (train, True)]
    assert [example.label for example in found.files[1].examples] == [0, 0]
    assert found.files[2] == found.files[0]
    mixed = write_json_rows(tmp_path / "m.jsonl", [{"text": "c"}, {"text": "d", "label": "x"}])
    with pytest.raises(DataError, match=f"^{mixed}:2: has a label, and the lines before it have none; give all .*$"):
        read_json_rows([train], [], [mixed])
    choices = write_json_rows(tmp_path / "c.jsonl", [{"text": "t", "choices": ["a", "b"]}])
    found = read_json_rows([], [], [choices])
    assert (found.choices, found.files[0].has_labels, found.files[0].examples[0].label) == (2, False, 0)


def test_names_of_classes_decide_their_numbers(tmp_path):
    one = write_json_rows(tmp_path / "t.jsonl", [{"text": "a", "label": "x"}])
    found = read_json_rows([], [one], (), ("y", "x"))
    assert (found.classes, found.files[0].examples[0].label) == (("y", "x"), 1)
    blind = write_json_rows(tmp_path / "b.jsonl", [{"text": "c"}])
    assert read_json_rows([], [], [blind], ("y", "x")).classes == ("y", "x")
    with pytest.raises(DataError, match=f"^{blind}:1: no file has labels, so the classes are not known; pass --load"):
        read_json_rows([], [], [blind])
