"""A model of Hugging Face is trained on here, and a run's model is used there."""

from __future__ import annotations

import re
import shlex

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from megads.checkpoint.resume.compatibility import model_of
from megads.data.formats.writer import IndexedWriter
from tests.checkpoint.convert.huggingface.models import assert_same_logits, our_module, their_module
from tests.checkpoint.made import find_latest
from tests.data.factory import write_list

LENGTH = 16
NO_SHAPE = {"HIDDEN": "", "HEADS": "", "NUM_KV_HEAD": "", "FFN_HIDDEN_SIZE": "", "NLAYERS": "", "EVAL_ITERS": "0"}
"""Takes the shape of the tests' own model out of the environment."""


@pytest.mark.parametrize("kind", ["llama3.2", "gpt2"])
def test_a_run_begins_with_the_loss_that_transformers_has(megads, kind):
    """Every sample is the same, so that the loss of the first step is that of one sample."""
    theirs = their_module(kind)
    theirs.save_pretrained(megads.folder / "theirs")
    imported = megads("checkpoint", "import-hf", "theirs", "ours")
    assert imported.returncode == 0, imported.stderr
    told = dict(word.split("=", 1) for word in shlex.split(imported.stdout.splitlines()[-1]) if "=" in word)
    assert told["LOAD"] == str(megads.folder / "ours")

    period = np.random.RandomState(0).randint(0, 53, LENGTH)
    with IndexedWriter(str(megads.folder / "data"), np.uint16) as writer:
        writer.add_document(np.tile(period, 200))
        writer.finalize()
    data = write_list(megads.folder / "list.txt", "1.0 data")
    no_dropout = {"HIDDEN_DROPOUT": "0", "ATTENTION_DROPOUT": "0"}
    settings = {**told, **no_dropout, "SEQ": str(LENGTH), "DATA_FILE_LIST": str(data)}
    done = megads.train(
        "run", **NO_SHAPE, **settings, TOKENIZER_TYPE="NullTokenizer", TP="2", TRAIN_ITERS="2", LR="0.01"
    )
    assert done.returncode == 0, done.stderr
    sample = torch.from_numpy(np.tile(period, 2)[: LENGTH + 1])[None]
    with torch.no_grad():
        logits = theirs(sample[:, :-1]).logits[0]
    expected = torch.nn.functional.cross_entropy(logits, sample[0, 1:]).item()
    first, _ = megads.losses("run")
    assert first == pytest.approx(expected, rel=1e-5)

    exported = megads("checkpoint", "export-hf", "run", "back")
    assert exported.returncode == 0, exported.stderr
    back = AutoModelForCausalLM.from_pretrained(megads.folder / "back")
    with torch.no_grad():
        later = torch.nn.functional.cross_entropy(back(sample[:, :-1]).logits[0], sample[0, 1:]).item()
    assert later != pytest.approx(expected, rel=1e-3)
    found = find_latest(megads.folder / "run/checkpoints")
    assert_same_logits(our_module(found.path, model_of(found.path, found.manifest)), back, LENGTH)


@pytest.mark.parametrize("family", ["llama", "gpt"])
def test_a_run_with_the_demo_tokenizer_writes_text_in_transformers(megads, family):
    layout = {"TP": "2", "DP": "2", "ZERO_STAGE": "3"} if family == "llama" else {"PP": "2", "TP": "2"}
    done = megads.train("run", MODEL_FAMILY=family, TRAIN_ITERS="3", **layout)
    assert done.returncode == 0, done.stderr
    exported = megads("checkpoint", "export-hf", "run", "out", DEMO_VOCAB_SIZE="999")  # the run's counts, not this one
    assert exported.returncode == 0, exported.stderr
    assert re.search(r"in fp32, model\.safetensors, tokenizer .*/demo-", exported.stdout)
    text = "def read(self):"
    made = pipeline("text-generation", model=str(megads.folder / "out"), device="cpu")(text, max_new_tokens=5)
    assert made[0]["generated_text"].startswith(text)
    assert AutoTokenizer.from_pretrained(megads.folder / "out").model_max_length == 32
    found = find_latest(megads.folder / "run/checkpoints")
    theirs = AutoModelForCausalLM.from_pretrained(megads.folder / "out")
    assert_same_logits(our_module(found.path, model_of(found.path, found.manifest)), theirs)
