"""RACE as it is published, and broken."""

import json

import pytest

from megads.data.tasks.examples import Example
from megads.data.tasks.race import read_race, with_answer
from megads.errors import DataError
from tests.data.tasks.files import race_object, write_race


def test_every_choice_is_a_question_with_its_answer_and_the_article(tmp_path):
    found = read_race(write_race(tmp_path / "middle", {"2.txt": race_object("Second"), "10.txt": race_object()}))
    assert len(found.examples) == 4
    assert found.examples[0] == Example(
        (("Who one ?", "A b. c"), ("Who two ?", "A b. c"), ("Who three ?", "A b. c"), ("Who four ?", "A b. c")), 1, True
    )
    assert found.examples[1].pairs[3] == ("Why? four", "A b. c")
    assert found.examples[1].label == 3
    assert found.examples[2].pairs[0][1] == "Second"  # 10.txt comes before 2.txt, on every file system


def test_an_answer_takes_the_place_of_every_blank():
    assert with_answer("a _ b _", "x") == "a x b x"
    assert with_answer("Why ?", "so\nwhat") == "Why ? so what"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"article": None}, "no text under 'article'; expected an object of RACE"),
        ({"answers": "AB"}, "no list under 'answers'; expected an object of RACE"),
        ({"answers": ["A"]}, "2 questions, 2 lists of options and 1 answers"),
        ({"answers": ["A", "E"]}, "the answer of question 2 is 'E'; expected A, B, C or D"),
        ({"options": [["a"] * 4, ["a"] * 3]}, "the options of question 2 are not 4 texts"),
        ({"questions": ["a", 1]}, "question 2 is not a text"),
    ],
)
def test_a_broken_object_is_refused_by_its_line(tmp_path, changes, why):
    lines = f"{json.dumps(race_object())}\n{json.dumps({**race_object(), **changes})}\n"
    folder = write_race(tmp_path / "r", {"1.txt": lines})
    with pytest.raises(DataError, match=f"^{folder}/1.txt:2: {why}$"):
        read_race(folder)


def test_what_is_no_folder_of_texts_is_refused(tmp_path):
    (tmp_path / "f").write_text("x")
    for path, why in ((tmp_path / "f", "not a folder"), (tmp_path, "holds no .txt file")):
        with pytest.raises(DataError, match=f"^{path}: {why}; RACE is a folder of"):
            read_race(str(path))
    folder = write_race(tmp_path / "r", {"1.txt": "{"})
    with pytest.raises(DataError, match=rf"^{folder}/1.txt:1: is not JSON \(line 1, column 2: "):
        read_race(folder)


def test_a_folder_without_answers_is_read_where_none_are_needed(tmp_path):
    bare = {key: value for key, value in race_object().items() if key != "answers"}
    found = read_race(write_race(tmp_path / "r", {"1.txt": bare, "2.txt": bare}), needs_labels=False)
    assert (len(found.examples), found.has_labels) == (4, False)
    folder = write_race(tmp_path / "m", {"1.txt": bare, "2.txt": race_object()})
    with pytest.raises(DataError, match=f"^{folder}/2.txt:1: has answers, and those before it have none; give all "):
        read_race(folder, needs_labels=False)
    with pytest.raises(DataError, match=f"^{folder}/1.txt:1: no list under 'answers'; expected an object of RACE$"):
        read_race(folder)
