"""The settings of a replay are those of the run, on one rank; the run itself is replayed in test_nonfinite."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megads.config.run_folder import save_config
from megads.config.schema import ParallelConfig
from megads.errors import ConfigError
from megads.train.numbers.kept import folder_of, write_kept
from megads.train.numbers.replay import one_rank, replay
from tests.parity.layouts import Layout
from tests.train.numbers.test_kept import KEPT


def test_one_rank_has_the_micro_batch_as_its_batch():
    run = Layout(tp=2, pp=2, dp=2, zero=1, engine="native").run(**{"train.micro_batch": "1"})
    one = one_rank(run, KEPT)
    assert one.parallel == ParallelConfig(data=1, zero_stage=0)
    assert (one.train.micro_batch, one.train.global_batch, one.train.grad_acc_steps) == (2, 2, 1)
    assert one.model == run.model
    assert one.engine.kind == "native"


def test_fp16_overflows_at_the_same_scale():
    run = Layout().run(**{"train.dtype": "fp16"})
    assert one_rank(run, replace(KEPT, loss_scale=1024.0)).optim.loss_scale == 256.0


def test_without_weights_it_says_what_keeps_them(tmp_path):
    save_config(Layout().run(), {}, tmp_path / "config.yaml")
    folder = folder_of(tmp_path, 7)
    write_kept(folder, KEPT)
    with pytest.raises(
        ConfigError, match="has no checkpoint before step 7; NONFINITE_KEEP=weights keeps those of the step"
    ):
        replay(folder, {"MEGADS_DEVICE": "cpu"})
