import pytest

from megads.comm.grid import Grid
from megads.errors import ConfigError, DataError
from megads.inference.generate import Prompt, read_prompts
from megads.inference.retro.prompts import read_neighbors, source_of
from megads.inference.retro.runner import RetroRunner
from tests.inference.letters import Letters
from tests.inference.retro.test_runner import module_of
from tests.inference.theirs import runner_of
from tests.models.noisy import ONE


def test_neighbours_of_a_line(tmp_path):
    assert read_neighbors({}, "f:1") == ()
    assert read_neighbors({"neighbors": []}, "f:1") == ()
    assert read_neighbors({"neighbors": ["a", "b"]}, "f:1") == (("a", "b"),)
    assert read_neighbors({"neighbors": [["a"], ["b", "c"]]}, "f:1") == (("a",), ("b", "c"))
    assert read_neighbors({"ctxs": [{"title": "T", "text": "a"}]}, "f:1") == (("title: T, source: a",),)
    assert read_neighbors({"ctxs": []}, "f:1") == ()
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "x", "neighbors": ["a"]}\n{"text": "y"}\n')
    assert read_prompts(path) == [Prompt("x", 0, neighbors=(("a",),)), Prompt("y", 1)]


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"neighbors": "a"}, "f:1: neighbors is 'a'; expected a list of texts, for all chunks, or a list"),
        ({"neighbors": [1]}, "f:1: neighbors holds 1; expected"),
        ({"neighbors": ["a", ["b"]]}, r"f:1: neighbors holds \['b'\]; expected"),
        ({"neighbors": [["a"], [None]]}, "f:1: neighbors holds None; expected"),
        ({"ctxs": "a"}, "f:1: ctxs is 'a'; expected a list"),
    ],
)
def test_what_is_wrong_with_neighbours_is_one_line(record, told):
    with pytest.raises(DataError, match=told):
        read_neighbors(record, "f:1")


def test_texts_become_tokens_of_a_length():
    runner = RetroRunner(module_of(), ONE, context=40, num_slots=1)
    source = source_of(runner, Letters(), (("abc", "d"), ("e",)))
    assert source is not None
    assert source(0, []).tolist() == [[0, 1, 2, *[52] * 5], [3, *[52] * 7]]
    assert source(1, []).tolist() == source(9, []).tolist() == [[4, *[52] * 7], [52] * 8]
    assert source_of(runner, Letters(), ()) is None
    with pytest.raises(ConfigError, match="has neighbors, and a model of the family llama looks at none; use a retro"):
        source_of(runner_of("llama3", Grid(), 0), Letters(), (("a",),))
