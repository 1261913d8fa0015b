"""Checkpoints of earlier versions resume bitwise: the rest of the run is that of the uninterrupted run.

``fixtures/format3`` (Llama, AdamW, TP=2) and ``fixtures/format4`` (GPT with dropout, Muon, DP=2) were written by the
version before modules moved to a folder for each question and models were described once, with the settings below and
EXIT_INTERVAL=3. Losses, gradient norms and the CRC of the weights are those of the same run without EXIT_INTERVAL, of
that version. The first epoch of the data ends in step 4, so the sample order of an epoch and of the next counts.

Bits depend on torch and on the processor's vector instructions. Where both are those of the recording, everything is
compared bitwise. Elsewhere losses are compared within 1e-6 (relative), and weights are not compared: with SSE or AVX2
instead of AVX-512, losses differ by up to 8e-8 and weights by up to 2e-5 (Muon computes in bf16). Another optimizer
state, dropout seed or sample order changes a loss by 4e-4 or more.
"""

from __future__ import annotations

import json
import re
import shutil
import zlib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from megads.checkpoint.format.reader import Reader
from tests.data.factory import write_dataset
from tests.e2e.conftest import Command

FIXTURES = Path(__file__).parent / "fixtures"
MOST_BYTES = 300_000
"""Of all fixtures together; they are in every clone."""
RECORDED_ON = ("2.13.0+cpu", "GenuineIntel 3c9de762")
SETTINGS = {
    "HIDDEN": "16",
    "HEADS": "4",
    "FFN_HIDDEN_SIZE": "32",
    "SEQ": "16",
    "VOCAB_SIZE": "32",
    "VOCAB_MULTIPLE": "32",
    "GLOBAL_BATCH": "4",
    "MICRO_BATCH": "1",
    "TRAIN_ITERS": "6",
    "LR": "0.01",
    "EVAL_INTERVAL": "0",
    "TRAIN_SPLIT": "950",
    "VAL_SPLIT": "50",
    "DATA_PATH": "data",
    "TOKENIZER_TYPE": "NullTokenizer",
    "ENGINE": "deepspeed",
}


@dataclass(frozen=True)
class Recorded:
    """What the old version did without an interruption, steps 4 to 6."""

    format: int
    settings: dict[str, str]
    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    weights: int  # CRC-32 of all parameters in the order of their names, whole, after step 6


RECORDED = (
    Recorded(
        3,
        {"MODEL_FAMILY": "llama", "NUM_KV_HEAD": "2", "TP": "2"},
        (3.4910290241241455, 3.5441229343414307, 3.4750778675079346),
        (1.8351750373840332, 1.496029019355774, 1.3050613403320312),
        0x85068DEF,
    ),
    Recorded(
        4,
        {"MODEL_FAMILY": "gpt", "OPT": "muon", "DP": "2", "HIDDEN_DROPOUT": "0.1", "ATTENTION_DROPOUT": "0.1"},
        (3.443528413772583, 3.4655678272247314, 3.4474263191223145),
        (0.6613826751708984, 0.6765487790107727, 0.6118548512458801),
        0xA9E2038D,
    ),
)


def platform() -> tuple[str, str]:
    """Return what bits depend on: the build of torch, and the processor's maker and vector instructions."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    vendor = re.search(r"^vendor_id\s*: (.*)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.*)$", text, re.MULTILINE)
    if vendor is None or flags is None:
        return version("torch"), "unknown"
    vector = sorted(set(re.findall(r"\b(?:avx|fma|amx|sse)\w*", flags[1])))
    return version("torch"), f"{vendor[1]} {zlib.crc32(' '.join(vector).encode()):08x}"


def weights_of(checkpoint: Path) -> int:
    """Return the CRC-32 of all parameters of a checkpoint, whole, in the order of their names."""
    crc = 0
    with Reader(checkpoint) as reader:
        for name in sorted(reader.manifest.tensors):
            crc = zlib.crc32(reader.whole(name).tobytes(), crc)
    return crc


@pytest.mark.dist
@pytest.mark.parametrize("recorded", RECORDED, ids=lambda each: f"format{each.format}")
def test_a_checkpoint_of_an_earlier_version_resumes_bitwise(tmp_path, recorded):
    megads = Command(tmp_path, tmp_path / "cache")
    checkpoints = tmp_path / "r/checkpoints"
    shutil.copytree(FIXTURES / f"format{recorded.format}", checkpoints)
    assert json.loads((checkpoints / "iter_0000003/manifest.json").read_text())["format"] == recorded.format
    write_dataset(tmp_path, [20] * 12, vocab=32, seed=15)

    done = megads.train("r", **SETTINGS, **recorded.settings)

    assert done.returncode == 0, done.stderr
    assert "loaded   weights, optimizer and position of r/checkpoints/iter_0000003, iteration 3" in done.stderr
    assert "had other data" not in done.stderr
    rows = [row for row in megads.rows("r") if "lm_loss" in row]
    assert [row["iteration"] for row in rows] == [4, 5, 6]
    losses = tuple(row["lm_loss"] for row in rows)
    if platform() == RECORDED_ON:
        assert losses == recorded.losses
        assert tuple(row["grad_norm"] for row in rows) == recorded.grad_norms
        assert weights_of(checkpoints / "iter_0000006") == recorded.weights
    else:
        assert losses == pytest.approx(recorded.losses, rel=1e-6)


def test_fixtures_are_small():
    sizes = [path.stat().st_size for path in FIXTURES.rglob("*") if path.is_file()]
    assert len(sizes) == 6
    assert sum(sizes) < MOST_BYTES
