"""BigScience's command line as it is written, paths apart, to its end and once more."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from megads.data.formats.writer import IndexedWriter
from megads.monitor.metrics import read_metrics
from tests.data.samples.masked.corpora import TOKENS, write_sentence_file, write_vocab

ROOT = Path(__file__).parents[2]


def _letters():
    """Return the 256 letters that byte-level BPE writes bytes as."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [each for each in range(256) if each not in own]
    return [chr(each) for each in own] + [chr(256 + place) for place in range(len(others))]


@pytest.mark.slow
def test_a_command_of_megatron_deepspeed_trains_as_it_is_written(tmp_path):
    words = {letter: number for number, letter in enumerate([*_letters(), "<|endoftext|>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(words))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with IndexedWriter(str(tmp_path / "corpus_text_document"), np.uint16) as writer:
        for seed in range(1000):
            writer.add_document(np.random.RandomState(seed).randint(0, 256, 1100))
        writer.finalize()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "megads").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m megads "$@"\n')
    (programs / "megads").chmod(0o755)
    env = {
        **{"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        **{"MACHINE": "cpu", "OMP_NUM_THREADS": "1", "LAUNCHER": "", "N_GPUS": "1", "PP_SIZE": "1", "TP_SIZE": "1"},
        **{"ZERO_STAGE": "1", "MICRO_BATCH_SIZE": "1", "GLOBAL_BATCH_SIZE": "4", "SAVE_INTERVAL": "50"},
        **{"VOCAB_FILE": "vocab.json", "MERGE_FILE": "merges.txt", "DATA_PATH": "corpus_text_document"},
        **{"CHECKPOINT_PATH": "checkpoints/tiny", "TENSORBOARD_PATH": "tensorboard"},
    }
    # 100 samples are 50 steps of the ramp; its first four show as much.
    command = ["bash", str(ROOT / "examples/pretrain_gpt_single_node.sh")]
    short = [*command, "--train-samples", "8", "--log-interval", "1", "--eval-iters", "1"]
    done = subprocess.run(short, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = done.stdout + done.stderr
    assert "\ndefaults Megatron-LM's; " in told
    assert "megads: --deepspeed has no effect: ENGINE says which engine runs\n" in told
    assert "megads: --train-samples 100 is overridden by --train-samples 8\n" in told
    rows = [row for row in read_metrics(tmp_path / "runs/tiny/metrics.jsonl") if "lm_loss" in row]
    assert [row["consumed_samples"] for row in rows] == [2, 4, 6, 8]
    assert all(abs(row["lm_loss"] - np.log(257)) < 0.3 for row in rows)
    assert list((tmp_path / "tensorboard").glob("events*"))
    assert (tmp_path / "checkpoints/tiny").is_dir()
    again = subprocess.run(short, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "is complete (4 iterations)" in again.stdout + again.stderr


SMALL = {"bert": "", "t5": "--kv-channels 16 --ffn-hidden-size 64"}


@pytest.mark.slow
@pytest.mark.parametrize("family", SMALL)
def test_megatrons_commands_of_masked_models_train(family, tmp_path):
    """The scripts as they are written, their model made small."""
    write_sentence_file(tmp_path, 2000)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "megads").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m megads "$@"\n')
    (programs / "megads").chmod(0o755)
    env = {
        **{"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        **{"MACHINE": "cpu", "OMP_NUM_THREADS": "1", "DATA_PATH": "data_text_sentence"},
        **{"VOCAB_FILE": write_vocab(tmp_path).name, "CHECKPOINT_PATH": "checkpoints/small"},
    }
    command = ["bash", str(ROOT / f"examples/pretrain_{family}.sh"), *SMALL[family].split()]
    command += ["--num-layers", "1", "--hidden-size", "32", "--num-attention-heads", "2", "--micro-batch-size", "2"]
    command += ["--global-batch-size", "4", "--train-iters", "2", "--lr-decay-iters", "2", "--eval-iters", "1"]
    command += ["--log-interval", "1", "--initial-loss-scale", "4096"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [row for row in read_metrics(tmp_path / "runs/small/metrics.jsonl") if "lm_loss" in row]
    assert [row["iteration"] for row in rows] == [1, 2]
    assert all(abs(row["lm_loss"] - np.log(len(TOKENS) + 2 + 100 * (family == "t5"))) < 0.3 for row in rows)
    assert all(("sop_loss" in row) == (family == "bert") for row in rows)
