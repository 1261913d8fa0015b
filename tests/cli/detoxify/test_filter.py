"""`megads detoxify filter`: its table, and what it refuses."""

from __future__ import annotations

import json

import pytest

from tests.cli.detoxify.conftest import one_line


@pytest.fixture
def annotated(folder):
    scores = [0.125, 0.5, 0.75, None, 0.25]
    lines = [
        {"id": place, "score": score if score is None else {"toxicity": score}} for place, score in enumerate(scores)
    ]
    (folder / "a-annotated.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_table_by_hand(megads, folder, annotated):
    code, out, _ = megads("filter --data-path a-annotated.jsonl --json n.json --workers 2 --prompt-path x")
    assert code == 0
    assert out.splitlines() == [
        "             texts     mean      std   lowest to highest",
        "all              4   0.4062 +- 0.2400   0.1250 to 0.7500",
        "toxic            1   0.7500 +- 0.0000   0.7500 to 0.7500",
        "non-toxic        3   0.2917 +- 0.1559   0.1250 to 0.5000",
        "kept             2   0.1875 +- 0.0625   0.1250 to 0.2500",
        "no score         1  dropped",
        f"{folder / 'a-filtered.jsonl'}: 2 of 5 lines, shuffled with seed 1234",
    ]
    assert sorted(json.loads(line)["id"] for line in (folder / "a-filtered.jsonl").read_text().splitlines()) == [0, 4]
    assert json.loads((folder / "n.json").read_text())["kept"]["mean"] == 0.1875
    assert megads("filter a-annotated.jsonl --keep 0.8 --out-path all --seed 5")[0] == 0
    assert len((folder / "all").read_text().splitlines()) == 4


WRONG = {
    "filter": "pass the file once",
    "filter none": "none: no such file",
    "filter texts.jsonl": 'texts.jsonl:1: has no "score"; run `megads detoxify annotate`',
    "filter a-annotated.jsonl --keep 0": "--keep",
    "filter a-annotated.jsonl --keep 1.5": "--keep",
    "filter a-annotated.jsonl --keep nan": "nan is not a number",
    "filter a-annotated.jsonl --keep 0.1": "a share of 0.1 of its 5 lines is none; nothing is kept",
    "filter a-annotated.jsonl --attribute threat": "\"score\" has no 'threat'; it has toxicity",
    "filter a-annotated.jsonl --output a-annotated.jsonl": "is the input",
    "filter a-annotated.jsonl --output key": "key: already exists",
    "filter a-annotated.jsonl --output no/where": "its folder does not exist",
}


@pytest.mark.parametrize("line", list(WRONG))
def test_wrong_words_are_one_line(megads, annotated, line):
    one_line(megads(line), WRONG[line])
