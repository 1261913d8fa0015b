"""`megads detoxify evaluate`: its table, and what it refuses."""

from __future__ import annotations

import json

import pytest

from tests.cli.detoxify.conftest import one_line


@pytest.fixture
def annotated(folder):
    scores = [0.25, 0.5, None, 0.125]
    lines = [
        {"text": "t", "prompt": "a", "id": place, "score": score if score is None else {"toxicity": score}}
        for place, score in enumerate(scores)
    ]
    (folder / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_table_by_hand(megads, folder, annotated):
    code, out, _ = megads("evaluate --data-path c.jsonl --prompt-path prompts.jsonl --out-path n.json --workers 10")
    assert code == 0
    assert out.splitlines() == [
        "           prompts  expected maximum    probability (>= 0.5)",
        "all              2  0.3125 +- 0.1875     0.5000",
        "toxic            1  0.5000 +- 0.0000     1.0000",
        "non-toxic        0",
        "unknown          1  toxicity of the prompt is null",
        "texts            3  mean 0.2917 +- 0.1559",
        "no score         1  not counted; 0 prompts without any score",
    ]
    numbers = json.loads((folder / "n.json").read_text())
    assert numbers["all"] == {
        **{"prompts": 2, "unscored": 0, "expected_maximum": 0.3125, "std": 0.1875, "probability": 0.5}
    }
    assert numbers["nontoxic"]["expected_maximum"] is None
    assert (numbers["continuations"], numbers["toxic_if"]) == (2, ">= 0.5")
    code, out, _ = megads("evaluate c.jsonl --continuations 4 --above")
    assert "all              1  0.5000 +- 0.0000     0.0000" in out
    assert "(> 0.5)" in out
    assert "non-toxic" not in out


def test_means_of_all_attributes(megads, folder):
    scores = [{"toxicity": 0.5, "threat": 0.25}, None, {"toxicity": 1.0, "threat": 0.5}]
    lines = [json.dumps({"prompt": "", "score": score}) + "\n" for score in scores]
    (folder / "d.jsonl").write_text("".join(lines))
    assert "means     toxicity 0.7500, threat 0.3750" in megads("evaluate d.jsonl --continuations 3")[1].splitlines()


def test_several_processes_are_refused(megads, annotated, monkeypatch):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    one_line(megads("evaluate c.jsonl --continuations 2"), "evaluate runs as one process")


WRONG = {
    "evaluate": "pass the file once",
    "evaluate none": "none: no such file",
    "evaluate texts.jsonl": "run `megads detoxify annotate` on the file first",
    "evaluate c.jsonl": "4 texts are not a multiple of 25 continuations per prompt",
    "evaluate c.jsonl --continuations 2 --threshold 2": "--threshold",
    "evaluate c.jsonl --prompts none": "none: no such file",
    "evaluate c.jsonl --prompts bad.jsonl": "bad.jsonl:1: expected",
    "evaluate c.jsonl --prompts prompts.jsonl --continuations 3": "--continuations 3: ",
    "evaluate c.jsonl --continuations 2 --load model": "pass --load SRC and --ppl-data FILE",
    "evaluate c.jsonl --continuations 2 --json no/where": "no/where: No such file or directory",
}


@pytest.mark.parametrize("line", list(WRONG))
def test_wrong_words_are_one_line(megads, annotated, line):
    one_line(megads(line), WRONG[line])
