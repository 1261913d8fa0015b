"""The command lines of Megatron's conversion tools, as they are written in its README, on both kinds of checkpoints."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from megads.checkpoint.convert.megatron.import_ import import_megatron
from megads.checkpoint.format.manifest import read_manifest
from megads.checkpoint.format.reader import Reader
from megads.cli import main
from megads.comm.grid import Grid
from tests.checkpoint.convert.megatron.samples import GPT2, exported, save_ours, weights
from tests.checkpoint.sources import make_arrays, write_source
from tests.models import shapes

BERT = shapes.BERT.model_copy(update={"activation": "gelu_tanh", "num_layers": 4, "vocab_multiple": 8})
T5 = shapes.T5.model_copy(update={"num_layers": 4, "decoder_layers": 2, "vocab_multiple": 8})
MERGE = """
    --model-type {kind} \
    --tensor-model-parallel-size 2 \
    --pipeline-model-parallel-size 1 \
    --target-pipeline-model-parallel-size 2 \
    --tokenizer-type BertWordPieceLowerCase \
    --vocab-file bert-vocab.txt \
    --num-layers 4 \
    --hidden-size 32 \
    --num-attention-heads 8 \
    --seq-length {length} \
    --max-position-embeddings {length} \
    --save bert_345m/merged
"""
UTIL = """
    --model-type GPT
    --load-dir checkpoints/gpt3_tp4_pp4
    --save-dir checkpoints/gpt3_tp2_pp2
    --target-tensor-parallel-size 2
    --target-pipeline-parallel-size 2
"""


SOME = {
    "bert": ("*_head*bias", ["lm_head.dense.bias", "lm_head.norm.bias", "lm_head.bias", "binary_head.bias"]),
    "t5": ("*.encoder_norm.*", ["layers.3.encoder_norm.weight", "layers.3.encoder_norm.bias"]),
}
"""Patterns of names of tensors, and which have them."""


def call(words: str, *more: str) -> Result:
    words = words.replace("\\\n", " ")
    return CliRunner().invoke(main, ["checkpoint", "reshape", *shlex.split(words), *more], env={"WORLD_SIZE": "2"})


def said(done: Result) -> str:
    """Return what was printed, without the folder of the test."""
    return done.output.replace(f"{Path.cwd()}/", "")


def merge(model) -> str:
    kind = {"bert": "BERT", "t5": "T5"}.get(model.family, "GPT")
    return MERGE.format(kind=kind, length=model.max_positions)


@pytest.mark.parametrize("model", [BERT, T5], ids=["bert", "t5"])
def test_the_merge_of_a_run(tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    arrays = make_arrays(model)
    write_source(tmp_path / "bert_345m", model, arrays, Grid(tensor=2, data=2))
    done = call(merge(model))
    assert done.exit_code == 0, done.output
    assert "TP=1 x PP=2 x SP=1 x DP=1" in done.output
    made = tmp_path / "bert_345m/merged/iter_0000050"
    assert read_manifest(made).kinds == ("weight",)
    with Reader(made) as reader:
        assert all((reader.whole(name) == each).all() for (kind, name), each in arrays.items() if kind == "weight")
    verified = CliRunner().invoke(main, ["checkpoint", "verify", str(made)])
    assert verified.exit_code == 0, verified.output
    shown = CliRunner().invoke(main, ["checkpoint", "inspect", str(made), "--json", "--pattern", SOME[model.family][0]])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.output)
    assert [each["name"] for each in found["tensors"]] == SOME[model.family][1]
    assert all(each["norms"]["weight"] > 0 for each in found["tensors"])
    assert (found["layout"]["pipe"], found["model"]["num_layers"]) == (2, 4)


@pytest.mark.parametrize(
    ("model", "more"), [(BERT, ()), (T5, ()), (T5, ("--split-rank", "1"))], ids=["bert", "t5", "t5-1"]
)
def test_the_merge_of_megatrons_files(tmp_path, monkeypatch, model, more):
    monkeypatch.chdir(tmp_path)
    ours = save_ours(tmp_path / "ours", model)
    exported(ours, tmp_path / "bert_345m", tensor=2, dtype="bf16")
    done = call(merge(model), *more)
    assert done.exit_code == 0, done.output
    assert said(done).endswith("bert_345m/merged/release: TP=1 x PP=2, Megatron's files, of bert_345m\n")
    files = sorted(str(path.parent.name) for path in Path("bert_345m/merged/release").glob("*/*.pt"))
    assert files == ["mp_rank_00_000", "mp_rank_00_001"]
    content = torch.load(f"bert_345m/merged/release/{files[1]}/model_optim_rng.pt", weights_only=False)
    assert content["args"].params_dtype == torch.bfloat16
    assert [path.name for path in Path("bert_345m").iterdir() if path.name.startswith(".")] == []
    before = import_megatron(tmp_path / "bert_345m", tmp_path / "a").path
    after = import_megatron(tmp_path / "bert_345m/merged", tmp_path / "b").path
    found, expected = weights(after), weights(before)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], each) for name, each in expected.items())


def test_the_other_tool_on_megatrons_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exported(save_ours(tmp_path / "ours", GPT2), tmp_path / "checkpoints/gpt3_tp4_pp4", tensor=4, pipe=4)
    done = call(UTIL)
    assert done.exit_code == 0, done.output
    found = weights(import_megatron(tmp_path / "checkpoints/gpt3_tp2_pp2", tmp_path / "back").path)
    assert all(np.array_equal(found[name], each) for name, each in weights(tmp_path / "ours/iter_0000000").items())


REFUSED = [
    ("--model-type GPT", "--model-type GPT: the checkpoint is of a BERT; use that"),
    ("--num-layers 24", "--num-layers 24: the checkpoint has 4; correct it, or drop it"),
    ("--tensor-model-parallel-size 4", "--tensor-model-parallel-size 4: the checkpoint has 2; correct it, or drop it"),
    ("--max-position-embeddings 512", "--max-position-embeddings 512: the checkpoint has 14; correct it, or drop it"),
    ("--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 2: the checkpoint has 1; correct it"),
]


@pytest.mark.parametrize(("words", "told"), REFUSED)
@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_what_the_command_says_wrongly(tmp_path, monkeypatch, whose, words, told):
    monkeypatch.chdir(tmp_path)
    if whose == "ours":
        write_source(tmp_path / "bert_345m", BERT, make_arrays(BERT), Grid(tensor=2))
    else:
        exported(save_ours(tmp_path / "ours", BERT), tmp_path / "bert_345m", tensor=2)
    done = call(merge(BERT), *shlex.split(words))
    assert (done.exit_code, said(done)) == (2, f"megads: {told.replace('14', str(BERT.max_positions))}\n")
    assert not Path("bert_345m/merged").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--tp 1", "bert_345m: is Megatron's; pass both --tp and --pp"),
        ("--tp 1 --pp 1 --dp 2", "bert_345m: Megatron's files have TP and PP only; drop the other degrees"),
        (
            "--tp 1 --pp 1 --zero-stage 1",
            "--zero-stage: is for checkpoints of megads, bert_345m is Megatron's; drop it",
        ),
        ("--tp 3 --pp 1", "--tp 3 does not divide the 8 key/value heads; use one of 1, 2, 4, 8"),
    ],
)
def test_what_megatrons_files_do_not_have(tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    exported(save_ours(tmp_path / "ours", BERT), tmp_path / "bert_345m")
    done = call(f"bert_345m out {words}")
    assert (done.exit_code, said(done)) == (2, f"megads: {told}\n")
    assert not Path("out").exists()
