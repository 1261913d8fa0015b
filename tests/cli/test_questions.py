"""`megads evaluate --qa` without a model, and what it refuses."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from megads.cli.evaluate import evaluate
from megads.errors import MegadsError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    questions = [{"question": "Who?", "answers": ["Ada Lovelace", "Ada"]}, {"question": "When?", "answer": 1843}]
    (tmp_path / "nq_QA_dev.json").write_text(json.dumps(questions))
    (tmp_path / "p.txt").write_text("The Ada.\nin 1843\n")
    (tmp_path / "p3.txt").write_text("x\n" * 3)
    return tmp_path


def test_answers_of_a_file_are_scored(folder):
    done = CliRunner().invoke(evaluate, ["--qa", "nq_QA_dev.json", "--predictions", "p.txt", "--json", "out.json"])
    assert done.exception is None, done.exception
    # "Ada" of "Ada Lovelace": precision 1, recall 1/2, F1 2/3; "in 1843": 1/2, 1, 2/3.
    assert done.output == (
        "qa nq_QA_dev.json: F1 0.6667 (precision 0.7500, recall 0.7500), best of several answers 0.8333, "
        "exact match 0.5000, 2 of 2 questions scored\n"
    )
    written = json.loads((folder / "out.json").read_text())
    assert written["task"] == "qa"
    assert written["f1"] == pytest.approx(2 / 3)
    assert written["exact_match"] == 0.5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--qa nq_QA_dev.json", "--qa needs a model, SRC, or answers to score, --predictions FILE"),
        ("--qa nothing.json --predictions p.txt", "nothing.json: "),
        ("--qa nq_QA_dev.json --predictions nothing.txt", "nothing.txt: "),
        ("--qa nq_QA_dev.json --predictions p3.txt", "p3.txt: has 3 predictions, and the file of questions 2"),
        ("run --data p.txt --contexts 2", "--contexts: needs questions, --qa FILE"),
        ("run --data p.txt --max-tokens 2", "--max-tokens: needs questions, --qa FILE"),
        ("run --qa nq_QA_dev.json --data p.txt", "--qa nq_QA_dev.json and --data: pass one of them"),
        ("run --qa nq_QA_dev.json --tasks sst2", "--qa nq_QA_dev.json and --tasks: pass one of them"),
        ("run --qa nq_QA_dev.json --style brief", "--style brief: expected one of short, yes-no"),
        ("run --qa nq_QA_dev.json --sp 2", "--sp 2: answers are generated with --tp, --pp and --dp"),
        ("run --qa nq_QA_dev.json --predictions no/p.txt", "--predictions no/p.txt: its folder does not exist"),
    ],
)
def test_what_is_refused_before_a_model_is_loaded(words, message):
    done = CliRunner().invoke(evaluate, words.split())
    assert isinstance(done.exception, MegadsError), done.exception
    assert message in str(done.exception)
