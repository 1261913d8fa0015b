from __future__ import annotations

import pytest

from megads.data.sources.epochs import train_shares
from megads.data.sources.file_list import Shard
from tests.data.factory import make_run, write_dataset


def test_shares_and_epochs_follow_weights_and_sizes(tmp_path):
    """30 samples of 8 tokens, a weight of 3 for file a and 1 for each of b's; 80 % is trained on."""
    sizes = {"a": 50, "b0": 100, "b1": 25}
    files = {name: write_dataset(tmp_path, [size // 5] * 5, name=name) for name, size in sizes.items()}
    shards = [Shard(1, files["b0"], "b"), Shard(3, files["a"], "a"), Shard(1, files["b1"], "b"), Shard(0, "gone", "c")]
    run = make_run(train={"train_iters": 6, "global_batch": 5})
    a, b = train_shares(run, shards)
    assert (a.corpus, a.files, a.tokens, a.weight) == ("a", 1, 40, pytest.approx(0.6))
    assert a.drawn == pytest.approx(0.6 * 240)
    assert a.epochs == a.most_epochs == pytest.approx(0.6 * 240 / 40)
    assert (b.files, b.tokens) == (2, 100)
    assert b.epochs == pytest.approx(0.4 * 240 / 100)
    assert b.most_epochs == pytest.approx(0.2 * 240 / 20)


def test_a_growing_batch_draws_less(tmp_path):
    shards = [Shard(1, write_dataset(tmp_path, [40] * 5), "a")]
    full = make_run(train={"train_iters": 6, "global_batch": 8})
    ramp = make_run(train={"train_iters": 6, "global_batch": 8, "rampup_batch_size": "4 4 16"})
    assert train_shares(full, shards)[0].drawn == 48 * 8
    assert train_shares(ramp, shards)[0].drawn == (4 * 4 + 2 * 8) * 8
