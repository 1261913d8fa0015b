"""BERT and T5 from the command: they learn on real text, with a growing batch and evaluation, and resume bitwise."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.e2e.test_resume import numbers

# Nats by which the loss of the validation documents falls at least; 1.21 and 2.65 on the library of Python 3.11.
FALLS = {"bert-345M": 0.9, "t5-220M": 2.0}
SETTINGS = {
    "TRAIN_ITERS": "90",
    "EVAL_INTERVAL": "30",
    "EVAL_ITERS": "2",
    "LR": "1e-2",
    "INIT_METHOD_STD": "0.06",
    "RAMPUP_BATCH_SIZE": "4 4 120",  # 8 after 30 iterations
}


@pytest.mark.parametrize("preset", FALLS)
def test_a_model_learns_while_its_batch_grows_and_resumes_bitwise(megads, preset):
    whole = megads.train("whole", "--preset", preset, **SETTINGS)
    assert whole.returncode == 0, whole.stderr
    rows = megads.rows("whole")
    sizes = [after["consumed_samples"] - row["consumed_samples"] for row, after in pairwise(rows)]
    assert set(sizes) >= {4, 8}
    valid = [row["valid_loss"] for row in rows if "valid_loss" in row]
    assert len(valid) == 4
    assert valid[0] - valid[-1] > FALLS[preset]
    terms = {"sop_loss", "valid_sop_loss"} & {name for row in rows for name in row}
    assert len(terms) == (2 if preset == "bert-345M" else 0)
    stopped = megads.train("parts", "--preset", preset, EXIT_INTERVAL="15", **SETTINGS)
    assert stopped.returncode == 75, stopped.stderr
    rest = megads.train("parts", "--preset", preset, **SETTINGS)
    assert rest.returncode == 0, rest.stderr
    again = megads.rows("parts")
    assert numbers(again) == numbers(rows)
    assert [[row.get(term) for term in terms] for row in again] == [[row.get(term) for term in terms] for row in rows]
