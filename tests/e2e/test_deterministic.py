"""The same run twice, and stopped and gone on with, gives the same files byte for byte."""

from __future__ import annotations

import hashlib

import pytest

from tests.e2e.test_resume import DROPOUT, numbers

ONE = {"MICRO_BATCH": "1", "DETERMINISTIC": "1", "EVAL_INTERVAL": "6", "RESET_ATTENTION_MASK": "1", **DROPOUT}
LAYOUTS = {
    "dp2-zero1-bf16": {"DP": "2", "ZERO_STAGE": "1", "DTYPE": "bf16"},
    "tp2-scatter": {"TP": "2", "ZERO_STAGE": "0", "SCATTER_NORMS": "1"},
    "pp2-bf16": {"PP": "2", "DTYPE": "bf16"},
    "dp2-zero3-overlap": {"DP": "2", "ZERO_STAGE": "3", "DDP_IMPL": "torch"},
    "sp2-zero2": {"SP": "2", "ZERO_STAGE": "2", "ZERO_HPZ_PARTITION_SIZE": "1"},
    "dp2-hpz": {"DP": "2", "ZERO_STAGE": "3", "ZERO_HPZ_PARTITION_SIZE": "2"},
}
QUICK = "dp2-zero3-overlap"


def state(folder):
    """Return a digest of every file with numbers of the last checkpoint: weights, moments."""
    files = sorted((folder / "checkpoints/iter_0000012").glob("*.safetensors"))
    assert files
    return [(path.name, hashlib.blake2b(path.read_bytes()).hexdigest()) for path in files]


def check(megads, layout, *wholes):
    """Compare a run that was stopped and resumed with whole ones, of which one is ``one``."""
    for name in wholes:
        done = megads.train(name, **ONE, **layout)
        assert done.returncode == 0, done.stderr
    assert megads.train("parts", **ONE, **layout, EXIT_INTERVAL="5").returncode == 75
    done = megads.train("parts", **ONE, **layout)
    assert done.returncode == 0, done.stderr
    expected = state(megads.folder / "one")
    for name in (*wholes[1:], "parts"):
        assert numbers(megads.rows(name)) == numbers(megads.rows("one"))
        assert state(megads.folder / name) == expected


def test_a_deterministic_run_repeats_bit_for_bit(megads):
    check(megads, LAYOUTS[QUICK], "one", "two")


@pytest.mark.slow
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != QUICK])
def test_every_deterministic_run_repeats_bit_for_bit(megads, layout):
    check(megads, LAYOUTS[layout], "one")
