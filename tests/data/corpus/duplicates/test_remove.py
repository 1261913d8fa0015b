"""Files of groups that somebody else wrote."""

from __future__ import annotations

import pytest

from megads.data.corpus.duplicates.remove import RemoveDuplicates
from megads.errors import DataError
from tests.data.corpus.conftest import Corpus


def test_groups_of_megatron(megads: Corpus):
    """Several groups on a line, unordered numbers; a group of one removes nothing."""
    megads.write("groups", ['{"7": ["a", "b"], "2": ["c"]}', "", '{"3": ["d", "a", "e"]}'])
    megads.write("a.jsonl", [{"url": name, "text": name} for name in "abcdef"])
    megads.made("remove-duplicates", "groups", "a.jsonl", "out")
    assert [each["url"] for each in megads.read("out")] == ["c", "d", "f"]


def test_another_key_and_numbers(megads: Corpus):
    megads.write("groups", ['{"0": ["1", "2"]}'])
    megads.write("a.jsonl", [{"id": number} for number in range(4)])
    megads.made("remove-duplicates", "groups", "a.jsonl", "out", "--key", "id")
    assert [each["id"] for each in megads.read("out")] == [0, 1, 3]


def test_pairs_without_a_similar_one_and_of_several_documents_on_a_line(megads: Corpus):
    megads.write("pairs", ['{"a": [{"b": 0.6}, {"c": 1.0}], "d": [{"e": 0.7}]}', '{"e": [{"a": 1}]}', '{"x": []}'])
    megads.made("group-duplicates", "pairs", "groups")
    assert megads.read("groups") == [{"0": ["a", "c", "d", "e"]}]


@pytest.mark.parametrize("line", ["7", '{"0": "a"}', '{"0": ["a", 1]}', "{"])
def test_what_is_no_file_of_groups_is_refused(tmp_path, line):
    path = tmp_path / "groups"
    path.write_text(f'{{"0": ["a", "b"]}}\n{line}\n')
    with pytest.raises(DataError, match=f"{path}:2: is not of the form"):
        RemoveDuplicates(str(path), "url").load()
