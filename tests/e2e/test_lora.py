"""Adapters from a base to a text: trained, resumed bitwise, merged, exported; a base that changed is refused."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.checkpoint.made import find_latest
from tests.e2e.conftest import Command
from tests.e2e.refused import one_line

RATES = {"LR": "0.01", "EVAL_ITERS": "0", "TRAIN_ITERS": "6"}
LORA = {**RATES, "LORA_RANK": "4", "LOAD": "base"}
CHATS = [
    {"prompt": "Who are you?", "response": "A small model."},
    {"messages": [{"role": "user", "content": "Say hi"}, {"role": "assistant", "content": "hi there"}]},
]


@pytest.fixture(scope="module")
def made(tmp_path_factory, cache):
    """Return a base, and a run of six steps of adapters of it."""
    command = Command(tmp_path_factory.mktemp("made"), cache)
    for name, settings in (("base", RATES), ("whole", LORA)):
        done = command.train(name, **settings)
        assert done.returncode == 0, done.stderr
    return command


def files_of(command, run):
    """Return the bytes of the newest checkpoint's numbers."""
    found = find_latest(command.folder / run / "checkpoints")
    assert found is not None
    return {path.name: path.read_bytes() for path in sorted(found.path.glob("*.safetensors"))}


@pytest.mark.parametrize("layout", [{}, {"NGPU_PER_HOST": "2", "ZERO_STAGE": "3"}], ids=["one", "two"])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(made, layout):
    first = made.train(f"stopped{len(layout)}", **LORA, **layout, EXIT_INTERVAL="3")
    assert first.returncode == 75, first.stderr
    again = made.train(f"stopped{len(layout)}", **LORA, **layout)
    assert again.returncode == 0, again.stderr
    assert "weights, optimizer and position" in again.stderr
    if layout:
        assert made.losses("stopped2") == pytest.approx(made.losses("whole"), rel=1e-5)
    else:
        assert files_of(made, "stopped0") == files_of(made, "whole")
        assert made.losses("stopped0") == made.losses("whole")
    assert "8.7k of 156k parameters are trained (5.6 %), the others are frozen" in first.stderr


def test_a_save_is_small_and_sound(made):
    done = made("checkpoint", "verify", "whole")
    assert done.returncode == 0, done.stderr
    sizes = {run: sum(map(len, files_of(made, run).values())) for run in ("base", "whole")}
    assert sizes["whole"] * 10 < sizes["base"]


def test_merged_weights_write_what_the_adapters_write(made):
    done = made("checkpoint", "merge-lora", "whole", "merged")
    assert done.returncode == 0, done.stderr
    texts = []
    for source in ("whole", "merged", "base"):
        done = made("generate", source, "--prompt", "the", "--max-tokens", "8", "--top-k", "1")
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
    assert texts[0] == texts[1]
    exported = [made("checkpoint", "export-hf", source, f"hf-{source}") for source in ("whole", "merged")]
    assert not any(done.returncode for done in exported)
    files = [(made.folder / f"hf-{source}/model.safetensors").read_bytes() for source in ("whole", "merged")]
    assert files[0] == files[1]


def test_chats_are_learnt_by_adapters(made):
    (made.folder / "chats.jsonl").write_text("".join(json.dumps(each) + "\n" for each in CHATS * 8))
    words = ("--train-data", "chats.jsonl", "--valid-data", "chats.jsonl", "--epochs", "3", "--lr", "0.01")
    done = made("finetune", "--task", "chat", "--load", "base", *words, LORA_RANK="8", RUN_DIR="chats")
    assert done.returncode == 0, done.stderr
    before, *_, after = (row["valid_loss"] for row in made.rows("chats") if "valid_loss" in row)
    assert after < before
    found = find_latest(made.folder / "chats/checkpoints")
    assert found is not None
    assert all(".lora_" in name for name in found.manifest.tensors)
    done = made("generate", "chats", "--chat", "--prompt", "Who are you?", "--max-tokens", "4", "--top-k", "1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"LORA_RANK": "4"},
            "LORA_RANK=4 trains adapters of weights that are trained already, and there are none; set",
        ),
        ({"LORA_RANK": "400", "LOAD": "base"}, "LORA_RANK=400 is more than the smaller side of a matrix"),
        ({"LORA_RANK": "4", "LORA_TARGETS": "norm", "LOAD": "base"}, "LORA_TARGETS='norm': 'norm' is none of"),
        ({"LORA_RANK": "x", "LOAD": "base"}, "LORA_RANK: 'x' is not an int"),
        ({"LORA_RANK": "4", "LORA_DROPOUT": "1", "LOAD": "base"}, "LORA_DROPOUT"),
        (
            {"LOAD": "whole"},
            "holds adapters (LORA_RANK=4) and not the weights that they change; `megads checkpoint merge",
        ),
        ({"LORA_RANK": "8", "LOAD": "whole"}, "model has lora_rank=4, this run asks for 8"),
    ],
)
def test_what_is_refused(made, settings, told):
    assert told in one_line(made.train("refused", **RATES, **settings))


def test_a_base_that_changed_is_refused(made, megads):
    for name in ("base", "whole"):
        shutil.copytree(made.folder / name, megads.folder / name)
    path = find_latest(made.folder / "base/checkpoints").path
    aside = path.with_name("aside")
    path.rename(aside)
    try:
        told = one_line(megads("generate", "whole", "--prompt", "the"))
        assert f"its base, {path} is not there; restore it, or name a copy" in told
        done = megads.train("whole", **{**LORA, "TRAIN_ITERS": "7"})  # LOAD names a copy
        assert done.returncode == 0, done.stderr
        manifest = megads.folder / "base/checkpoints" / path.name / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"iteration"', '"iteration" '))
        told = one_line(megads.train("whole", **{**LORA, "TRAIN_ITERS": "8"}))
        assert "has another content than when the adapters were trained" in told
    finally:
        aside.rename(path)
