"""Seeds of a whole run: the dropout's is its own, and nothing is drawn with SEED that has one."""

import pytest

DROPOUT = {"HIDDEN_DROPOUT": "0.1", "TRAIN_ITERS": "3", "EVAL_INTERVAL": "3"}


@pytest.mark.slow
def test_each_seed_is_for_its_own(megads):
    runs = {
        "base": {"SEED": "7"},
        "spelled": {"SEED": "1", "INIT_SEED": "7", "DATA_SEED": "7", "DROPOUT_SEED": "7"},
        "dropout": {"SEED": "7", "DROPOUT_SEED": "8"},
        "data": {"SEED": "7", "DATA_SEED": "8"},
        "weights": {"SEED": "7", "WEIGHTS_SEED": "8"},
    }
    first = {}
    for name, seeds in runs.items():
        done = megads.train(name, **DROPOUT, **seeds)
        assert done.returncode == 0, done.stderr
        valid = next(row["valid_loss"] for row in megads.rows(name) if "valid_loss" in row)
        first[name] = (valid, megads.losses(name))
    assert first["spelled"] == first["base"]
    assert first["dropout"][0] == first["base"][0]  # nothing is dropped there
    assert first["dropout"][1] != first["base"][1]
    assert first["data"][1] != first["base"][1]
    assert first["weights"][0] != first["base"][0]
