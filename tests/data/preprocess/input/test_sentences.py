"""Sentences: cut with a Punkt model that the test trains, each a sequence of its document."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.data.preprocess.conftest import golden, index, write_jsonl

TRAIN = """
import os, sys
from nltk.tokenize import punkt
trainer = punkt.PunktTrainer()
trainer.train("Dr. Smith went home. He arrived at 5 p.m. yesterday. Mr. Jones was there. Dr. Brown too. " * 20)
os.makedirs(sys.argv[1], mode=0o700)
punkt.save_punkt_params(trainer.get_params(), dir=sys.argv[1] + "/klingon")
"""
PIECES = {
    "Dr. Smith came.  He left at 5 p.m. yesterday.\n\nWhat? Yes! (No.) End": (
        ["Dr. Smith came.", "He left at 5 p.m. yesterday.", "What?", "Yes!", "(No.)", "End"],
        ["Dr. Smith came.  ", "He left at 5 p.m. yesterday.\n\n", "What? ", "Yes! ", "(No.)", "End"],
    ),
    "": ([], []),
    "one line\nand the same sentence": (["one line\nand the same sentence"], ["one line\nand the same sentence"]),
}


@pytest.fixture(scope="module")
def nltk_data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Give the environment in which nltk finds the model."""
    root = tmp_path_factory.mktemp("nltk", numbered=True)
    env = {"NLTK_DATA": str(root)}
    folder = root / "tokenizers" / "punkt_tab"
    subprocess.run([sys.executable, "-c", TRAIN, str(folder)], env={**os.environ, **env}, check=True, timeout=300)
    return env


@pytest.mark.parametrize("keep", [False, True])
def test_sentences(megads, tokenizer, nltk_data, keep):
    """Lists are sentences already; a document that has none keeps its entry; eod is behind the last one."""
    values = [*PIECES, ["A. B. is whole. Is it?", "", "Yes."], "Last one. Really."]
    write_jsonl(megads.folder / "a.jsonl", values)
    words = ["--split-sentences", "--lang", "klingon", "--append-eod", *["--keep-newlines"] * keep]
    words += ["--output-prefix", "out", "--tokenizer-model", tokenizer, "--workers", 2, "--block-bytes", 30]
    megads.made("--input", "a.jsonl", *words, env=nltk_data)
    last = ["Last one. " if keep else "Last one.", "Really."]
    expected = [*(pair[keep] for pair in PIECES.values()), values[-2], last]
    tokens, lengths, documents = golden(tokenizer, expected, eod=True)
    assert megads.files() == {
        "out_text_sentence.bin": tokens,
        "out_text_sentence.idx": index(lengths, documents, 2, 8),
    }


@pytest.mark.parametrize("splitter", ["rules", "lines"])
def test_sentences_without_a_model(megads, tokenizer, splitter):
    text = "Dr. Smith came. He left.\nWhat? Yes!"
    write_jsonl(megads.folder / "a.jsonl", [text])
    words = ["--input", "a.jsonl", "--output-prefix", "out", "--tokenizer-model", tokenizer, "--workers", 1]
    megads.made(*words, "--split-sentences", "--sentence-splitter", splitter, env={"NLTK_DATA": "/nowhere"})
    expected = {
        "rules": ["Dr. Smith came.", "He left.", "What?", "Yes!"],
        "lines": ["Dr. Smith came. He left.", "What? Yes!"],
    }
    tokens, lengths, documents = golden(tokenizer, [expected[splitter]], eod=False)
    assert megads.files() == {
        "out_text_sentence.bin": tokens,
        "out_text_sentence.idx": index(lengths, documents, 2, 8),
    }
    done = megads(*words, "--sentence-splitter", splitter, "--overwrite")
    assert (done.code, done.error) == (2, "megads: --sentence-splitter needs --split-sentences")


def test_text_is_split_in_pieces_of_a_million_characters(megads, nltk_data):
    """As in Megatron: the end of a piece ends a sentence."""
    text = "1 " * 600_000 + ". 2"
    write_jsonl(megads.folder / "a.jsonl", [text.replace(". ", "")])
    words = ["--split-sentences", "--lang", "klingon", "--tokenizer-type", "NullTokenizer", "--vocab-size", 5]
    megads.made("--input", "a.jsonl", "--output-prefix", "out", *words, env=nltk_data)
    files = megads.files()
    assert files["out_text_sentence.idx"] == index([500_000, 100_001], [0, 2], 2, 8)
    assert np.frombuffer(files["out_text_sentence.bin"], "<u2").sum() == 600_000 + 2


def test_no_model_is_one_line(megads, tokenizer, nltk_data):
    write_jsonl(megads.folder / "a.jsonl", ["A. B."])
    words = ["--input", "a.jsonl", "--output-prefix", "out", "--tokenizer-model", tokenizer, "--split-sentences"]
    for lang in ("vulcan", "../klingon"):
        done = megads(*words, "--lang", lang, env=nltk_data)
        assert done.code == 2
        assert done.error.startswith(f"megads: --lang {lang}: nltk finds no Punkt model tokenizers/punkt_tab/{lang} in")
        assert "`python -m nltk.downloader -d FOLDER punkt_tab`" in done.error
        assert "or pass --sentence-splitter rules" in done.error
        assert sorted(os.listdir(megads.folder)) == ["a.jsonl"]


def test_megatrons_rule_of_lines(nltk_data, monkeypatch: pytest.MonkeyPatch):
    """White space behind a sentence stays with it, also where several ends meet."""
    from nltk.data import path

    from megads.data.preprocess.input.sentences import make_splitter

    monkeypatch.setattr("nltk.data.path", [nltk_data["NLTK_DATA"], *path])
    split = make_splitter("klingon", keep_newlines=True)
    assert split("!...what?!\n-- ") == ["!...what?!\n", "--"]
    assert split("Pi is 3.14 or so. \n\n Yes.\n") == ["Pi is 3.14 or so. \n\n ", "Yes."]
    assert Path(nltk_data["NLTK_DATA"]).is_dir()
