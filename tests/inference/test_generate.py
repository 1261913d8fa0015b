"""Files of prompts, and records in the order of the prompts."""

from __future__ import annotations

import json

import pytest

from megads.comm.grid import Grid
from megads.data.tokenizers.base import Specials
from megads.errors import ConfigError, DataError
from megads.inference.generate import Prompt, generate, prompts_of, read_prompts, stream
from megads.inference.sampling import Sampling
from megads.inference.session import Session
from tests.inference import their_t5
from tests.inference.letters import Letters
from tests.inference.theirs import runner_of


@pytest.fixture(scope="module")
def session():
    runner = runner_of("llama3", Grid(), 0, num_slots=2)
    return Session(runner, runner.groups, Letters(), (52,), "")


def _file(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_lines_of_text_and_json(tmp_path):
    assert read_prompts(_file(tmp_path / "a.txt", "one", "", '{"x": 1}')) == [Prompt("one", 0), Prompt('{"x": 1}', 2)]
    lines = ['{"prompt": "a", "id": "x", "max_tokens": 3, "stop": "."}', '{"prompt": {"text": "b"}}', '{"text": "c"}']
    found = read_prompts(_file(tmp_path / "a.jsonl", *lines))
    assert [(each.text, each.id) for each in found] == [("a", "x"), ("b", 1), ("c", 2)]
    assert found[0].own == {"max_tokens": 3, "stop": (".",)}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["{"], r"a.jsonl:1: is not JSON"),
        (['{"text": "a"}', "[]"], r'a.jsonl:2: expected an object with "prompt" or "text"'),
        (['{"prompt": 5}'], "a.jsonl:1: expected"),
        ([""], "has no prompt"),
        (["[" * 100_000], "a.jsonl:1: is nested deeper than 64 levels"),
        (['{"text": "a", "max_tokens": "5"}'], "a.jsonl:1: max_tokens: input should be a valid integer"),
        (['{"text": "a", "stop": 5}'], "a.jsonl:1: stop: "),
        (['{"text": "a", "top_k": 1.5}'], "a.jsonl:1: top_k: "),
        (['{"text": "a", "logit_bias": {"x": 1}}'], "a.jsonl:1: logit_bias.0.0: "),
        (['{"text": "a", "temperature": -1}'], "a.jsonl:1: temperature=-1 is out of range"),
        (['{"text": "a\\ud800"}'], "a.jsonl:1: .*surrogates"),
    ],
)
def test_files_without_prompts(tmp_path, lines, words):
    with pytest.raises(DataError, match=words):
        read_prompts(_file(tmp_path / "a.jsonl", *lines))


def test_line_separators_inside_of_json_marks_of_byte_order_and_biases(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        '\ufeff{"text": "a\u2028b", "seed": null, "logit_bias": {"5": 1}}\r\n\r\n{"text": "c"}\r\n'.encode()
    )
    assert read_prompts(path) == [Prompt("a\u2028b", 0, {"seed": None, "logit_bias": ((5, 1.0),)}), Prompt("c", 2)]


def test_a_prompt_that_is_not_text(session):
    with pytest.raises(ConfigError, match="prompt 1: the prompt is not UTF-8"):
        generate(session, [Prompt("a\udcff")], Sampling())


def test_a_file_that_does_not_exist(tmp_path):
    with pytest.raises(DataError, match=r"--input .*none.txt: No such file"):
        read_prompts(tmp_path / "none.txt")


def test_records_are_in_the_order_of_the_prompts(session):
    prompts = [Prompt("abc", "first", {"max_tokens": 9}), Prompt("Z", 1, {"max_tokens": 2}), Prompt("", "new")]
    progress = []
    made = generate(
        session, prompts, Sampling(temperature=0, max_tokens=5, ignore_eos=True), lambda *done: progress.append(done)
    )
    assert [each["id"] for each in made] == ["first", 1, "new"]
    assert [each["tokens"] for each in made] == [9, 2, 5]
    assert [each["all_text"] for each in made] == [f"{each['prompt']}{each['text']}" for each in made]
    assert progress == [(1, 3), (2, 3), (3, 3)]
    assert json.loads(json.dumps(made)) == made


def test_the_seed_of_a_prompt_is_its_own_or_the_command_s_and_its_place(session):
    prompts = [Prompt("ab"), Prompt("ab"), Prompt("ab", None, {"seed": 7})]
    texts = [each["text"] for each in generate(session, prompts, Sampling(max_tokens=12, seed=7))]
    assert texts[0] == texts[2] != texts[1]
    assert texts == [each["text"] for each in generate(session, prompts, Sampling(max_tokens=12, seed=7))]


def test_log_probabilities_of_prompt_and_output(session):
    (made,) = generate(
        session, [Prompt("abc")], Sampling(max_tokens=2, temperature=0, logprobs=2, prompt_logprobs=True)
    )
    assert len(made["logprobs"]) == 5
    assert made["logprobs"][0] == {"token": 0, "logprob": None, "top": []}
    assert made["logprobs"][4]["top"][0][1] == made["logprobs"][4]["logprob"]  # greedy: the most likely one


def test_a_prompt_that_does_not_fit_stops_before_anything_is_generated(session):
    progress = []
    with pytest.raises(ConfigError, match="prompt 2: the prompt has 70 tokens and the model a context of 64"):
        generate(session, [Prompt("a"), Prompt("a" * 70)], Sampling(), lambda *done: progress.append(done))
    assert not progress
    with pytest.raises(ConfigError, match="prompt 2: top_k=-1"):
        generate(session, [Prompt("a"), Prompt("a", None, {"top_k": -1})], Sampling())


def test_a_stream_is_the_text_of_the_record(session):
    sampling = Sampling(max_tokens=20, seed=4, stop=("q",))
    (made,) = generate(session, [Prompt("Hello")], sampling)
    pieces = list(stream(session, "Hello", sampling))
    assert "".join(pieces) == made["text"]
    assert len(pieces) > 1


class Sentinels(Letters):
    """Letters of which X and Y stand for spans."""

    specials = Specials(eos=52, pad=0, extra=(50, 51))

    def encode(self, text: str) -> list[int]:
        return super().encode(text.replace("<extra_id_0>", "X").replace("<extra_id_1>", "Y"))


def test_a_t5_fills_the_gaps_of_its_prompt(monkeypatch):
    runner = their_t5.runner_of(their_t5.folder_of("t5-v1.1"), num_slots=2)
    session = Session(runner, runner.groups, Sentinels(), (52,), "")
    prompts = [Prompt("ab<extra_id_0>c"), Prompt("hello", 7)]
    sampling = Sampling(max_tokens=9, temperature=0, logprobs=0, prompt_logprobs=True)
    free = generate(session, prompts, sampling)
    assert [each["id"] for each in free] == [None, 7]
    assert free[1]["all_text"] == free[1]["text"] != ""
    assert [len(each["logprobs"]) for each in free] == [each["tokens"] for each in free]
    forced = Sampling(max_tokens=4, temperature=0, logit_bias=((50, 1e4),))
    (made,) = generate(session, prompts[:1], forced)
    assert (made["text"], made["all_text"]) == ("XXXX", "abc")
    assert list(stream(session, "ab<extra_id_0>c", forced)) == ["abc"]
    monkeypatch.setattr("megads.inference.engine.Engine.run", lambda self: iter(_written(self, [50, 7, 8, 51, 9, 52])))
    (made,) = generate(session, [Prompt("ab<extra_id_0>c<extra_id_1>")], sampling)
    assert made["all_text"] == "abhicj"


def _written(engine, tokens):
    (request,) = engine.waiting
    request.output = tokens
    return [request]


def test_what_a_pipe_has():
    assert prompts_of(b"one\r\n\n{two}\n") == [Prompt("one", 0), Prompt("{two}", 2)]
    assert prompts_of(b'\n {"prompt": "one", "id": 7}\n{"text": "two"}') == [Prompt("one", 7), Prompt("two", 2)]
    for content, words in ((b"\xff", "can't decode byte 0xff"), (b" \n", "has no prompt"), (b"{a\n", "-:1: ")):
        with pytest.raises(DataError, match=f"{'' if words[0] == '-' else '--input -: .*'}{words}"):
            prompts_of(content)
