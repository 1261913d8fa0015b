"""The command lines of the finetuning step."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from megads.config.sources.presets import read_preset
from megads.data.tokenizers.base import TokenizerSpec
from megads.detoxify.finetune import SETTINGS, Start, Texts, preprocess_words, texts_of, train_words
from megads.errors import CheckpointError, DataError

SPEC = TokenizerSpec("HFTokenizer", "/t")


def _start(load="/runs/books/checkpoints/iter_0000004", **settings):
    manifest = SimpleNamespace(settings=settings, about={})
    return Start(Path(load), SimpleNamespace(path=Path(load), manifest=manifest), Path(load))


def test_the_settings_are_those_of_the_paper():
    assert read_preset(str(SETTINGS)).fits == ("cpu",)
    settings = yaml.safe_load(SETTINGS.read_text())["settings"]
    assert settings["optim.lr"] == 2e-5
    assert settings["optim.lr_decay_style"] == "constant"
    assert (settings["train.global_batch"], settings["train.train_iters"]) == (512, 78)
    assert (settings["optim.weight_decay"], settings["optim.adam_beta1"], settings["optim.adam_beta2"]) == (
        0.1,
        0.9,
        0.95,
    )
    assert (settings["train.eval_interval"], settings["train.eval_iters"]) == (78, 50)


def test_what_texts_are_named_by(tmp_path):
    for name in ("a.jsonl", "a.jsonl.gz", "a.json"):
        (tmp_path / name).write_text("{}")
        assert texts_of(tmp_path / name) == Texts(tmp_path / "a_text_document", tmp_path / name, False)
    (tmp_path / "a_text_document.idx").touch()
    assert texts_of(tmp_path / "a_text_document") == texts_of(tmp_path / "a_text_document.bin")
    assert texts_of(tmp_path / "a_text_document") == Texts(tmp_path / "a_text_document")
    assert texts_of(tmp_path / "a.jsonl").is_made
    os.utime(tmp_path / "a_text_document.idx", (1, 1))  # older than the texts
    stale = texts_of(tmp_path / "a.jsonl")
    assert not stale.is_made
    assert preprocess_words(stale, SPEC, 3) == [
        *("--input", str(tmp_path / "a.jsonl"), "--output-prefix", str(tmp_path / "a"), "--append-eod"),
        *("--workers", "3", "--overwrite", "--tokenizer-type", "HFTokenizer", "--tokenizer-model", "/t"),
    ]
    with pytest.raises(DataError, match="none: no such file; pass JSON lines of `megads detoxify filter`"):
        texts_of(tmp_path / "none")


def test_the_words_of_train():
    start = _start(model={"seq_length": 32}, train={"dtype": "fp32"})
    words = train_words(Texts(Path("/d/my texts")), start, tokenizer=SPEC, valid=(), given=(), own=["--lr=1e-5"])
    assert words == [
        *("--preset", str(SETTINGS), "--load", "/runs/books/checkpoints/iter_0000004", "--data-path", '"/d/my texts"'),
        *("--split", "100,0,0", "--set", "train.eval_interval=0", "--set", "train.eval_iters=0"),
        *("--tokenizer-type", "HFTokenizer", "--tokenizer-model", "/t", "--set", "name=books-detoxified"),
        *("--set", "model.seq_length=32", "--set", "train.dtype=fp32", "--lr=1e-5"),
    ]


def test_what_the_user_says_is_not_said_again():
    start = _start(model={"seq_length": 32}, train={"dtype": "fp32"})
    given = {"data.split", "train.eval_interval", "name", "model.seq_length", "train.dtype"}
    words = train_words(Texts(Path("/d")), start, tokenizer=None, valid=("0.5", "a", "0.5", "b"), given=given, own=())
    assert words == [
        *("--preset", str(SETTINGS), "--load", str(start.load), "--data-path", "/d"),
        *("--valid-data-path", "0.5", "a", "0.5", "b"),
    ]


def test_what_training_continues_with():
    start = _start(model={"seq_length": 32, "hidden_dropout": 0.1, "attention_dropout": 0.0}, train={})
    assert start.settings() == {"model.seq_length": "32", "model.hidden_dropout": "0.1"}
    start = _start()
    start.manifest.about["hf"] = {"settings": {"seq_length": 64}}
    assert start.settings() == {"model.seq_length": "64"}
    start.manifest.about["torch_dtype"] = "float32"
    assert start.settings() == {"model.seq_length": "64", "train.dtype": "fp32"}
    start.manifest.settings["train"] = {"dtype": "bf16"}  # a run keeps its weights in fp32
    assert start.settings()["train.dtype"] == "bf16"


def test_names_of_runs():
    names = {"/runs/7B": "7B", "/a/hf/checkpoints": "hf", "/m/release": "m", "/": ""}
    for load, name in names.items():
        assert _start(load).name == (f"{name}-detoxified" if name else "detoxified")


def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match="No such file or directory"):
        Start.of(tmp_path / "none", tmp_path)
