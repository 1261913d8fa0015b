"""How the readers of tasks clean texts and read lines."""

import pytest

from megads.data.tasks.examples import clean_text, lines_of, require_examples
from megads.errors import DataError


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a\nb\t c", "a b c"),
        ("One . two . three .", "One. two. three ."),
        ("a . . . b", "a. .. b"),
        (" edges ", " edges "),
    ],
)
def test_texts_are_cleaned_as_megatron_does(text, clean):
    assert clean_text(text) == clean


def test_lines_say_where_they_are(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes("\ufeffone\r\ntwo\u2028x\n\n".encode())
    assert list(lines_of(str(path))) == [(f"{path}:1", "one"), (f"{path}:2", "two\u2028x"), (f"{path}:3", "")]


def test_a_line_that_is_no_utf8_is_refused_by_its_number(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b"one\ntw\xffo\n")
    with pytest.raises(DataError, match=rf"^{path}:2: byte 2 is not UTF-8; save the file as UTF-8$"):
        list(lines_of(str(path)))


@pytest.mark.parametrize("make", ["missing", "folder"])
def test_what_is_no_file_is_refused(tmp_path, make):
    path = tmp_path / "x"
    if make == "folder":
        path.mkdir()
    with pytest.raises(DataError, match=rf"^{path}: (no such file|is a folder)"):
        list(lines_of(str(path)))


def test_a_file_without_examples_is_refused():
    with pytest.raises(DataError, match=r"^x: has no examples$"):
        require_examples("x", [])
