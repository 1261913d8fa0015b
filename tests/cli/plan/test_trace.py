"""``megads plan --trace``: what it refuses in one line, and which run it traces."""

from __future__ import annotations

import json
import multiprocessing

import pytest
from click.testing import CliRunner

from megads.cli.plan import plan
from megads.errors import MegadsError

SMALL = {"NLAYERS": "2", "HIDDEN": "64", "HEADS": "4", "NUM_KV_HEAD": "4", "FFN_HIDDEN_SIZE": "128", "SEQ": "32"}


@pytest.mark.parametrize(
    ("words", "env", "text"),
    [
        ("--trace", {}, "--world N, --ranks N or --nodes N"),
        ("--trace --world 0", {}, "--world 0: total ranks, from 1"),
        ("--trace --world -8 --rank 0", {}, "--world -8: total ranks"),
        ("--trace --world 99999999", {}, "--world 99999999: total ranks, from 1 to 1048576"),
        ("--trace --world 8 --rank 8", {}, "--rank 8: the ranks of --world 8 are 0 to 7"),
        ("--trace --world 8 --rank -1", {}, "--rank -1: the ranks of --world 8 are 0 to 7"),
        ("--rank 3", {}, "--rank 3 is for --trace"),
        ("--world 8 --nodes 2", {}, "--world 8 is for --trace"),
        ("--trace --world 8 --nodes 2", {}, "pass one of them"),
        ("--trace --world 8 --apply", {}, "--apply is for a search"),
        ("--trace --world 8 --tokens 1T", {}, "--tokens is for a search"),
        ("--trace --world 1000", {"TP": "3"}, "TP=3"),
        ("--trace --world 12", {"PP": "8"}, "PP=8"),
        ("--trace --world 8", {"PP": "2", "VIRTUAL_STAGES": "2", "ENGINE": "deepspeed"}, "VIRTUAL_STAGES=2"),
    ],
)
def test_what_cannot_be_traced_is_one_line(words, env, text, monkeypatch):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    found = CliRunner().invoke(plan, ["--preset", "7B", *words.split()])
    assert isinstance(found.exception, MegadsError), found.output
    assert text in str(found.exception)
    assert "\n" not in str(found.exception)


def _traced(words):
    found = CliRunner().invoke(plan, words.split(), catch_exceptions=False)
    return found.exit_code, found.stdout, found.stderr


def _fork(words):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(_traced, (words,))


def test_a_rank_of_many_is_traced_as_text_and_json(monkeypatch):
    for name, value in {**SMALL, "TP": "2", "PP": "2"}.items():
        monkeypatch.setenv(name, value)
    code, text, notes = _fork("--preset 7B --rank 517 --world 1024 --trace")
    assert code == 0
    assert "megads: tracing a step of 1 micro-batch ...\n" in notes
    assert text.startswith("rank     517 of 1024: pipe 1, data 2, seq 0, tensor 1")
    assert "engine   native" in text
    assert " bytes (" not in text
    code, text, _ = _fork("--preset 7B --rank 517 --world 1024 --trace --json -")
    content = json.loads(text)
    assert (code, content["rank"], content["stage"], content["equal"]) == (0, 517, 1, True)
