import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from megads.config.run_folder import load_config
from megads.errors import ConfigError, DataError
from megads.launch.plan_run import plan_attempt, prepare, shrink
from megads.launch.request import TrainRequest
from tests.data.factory import write_dataset

ROOT = Path(__file__).parents[2]


def test_fewer_hosts_keep_the_global_batch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        **{"MACHINE": "cpu", "MEGADS_DEVICE": "cpu", "NLAYERS": "2", "HIDDEN": "64", "HEADS": "4", "SEQ": "32"},
        **{"NUM_KV_HEAD": "4", "FFN_HIDDEN_SIZE": "128", "RUN_DIR": str(tmp_path / "r"), "TRAIN_ITERS": "3"},
        **{"GLOBAL_BATCH": "24", "MICRO_BATCH": "2", "NGPU_PER_HOST": "3", "DATA_CACHE_PATH": str(tmp_path)},
    }
    job = prepare(TrainRequest(None, (), env, "h", ROOT, sys.executable))
    assert job.run.parallel.data == 3
    fewer = replace(job.allocation, hosts=("a", "b"), ranks_per_host=1)
    assert shrink(job, fewer) == ("DP 3 -> 2, micro-batch 2 -> 2, accumulation 4 -> 6, the global batch stays 24")
    written = load_config(tmp_path / "r/config.yaml")
    assert (written.parallel.data, written.train.grad_acc_steps, written.train.global_batch) == (2, 6, 24)
    with pytest.raises(ConfigError):
        shrink(job, replace(job.allocation, hosts=("a", "b", "c", "d", "e"), ranks_per_host=1))


def test_ranks_get_the_variables_of_the_data_lists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path, [40] * 40, vocab=500)
    (tmp_path / "list.txt").write_text(f"1 $BOOKS/{next(tmp_path.glob('*.bin')).name} books\n")
    env = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        **{"MACHINE": "cpu", "MEGADS_DEVICE": "cpu", "NLAYERS": "2", "SEQ": "32", "TP": "2", "TRAIN_ITERS": "3"},
        **{"GLOBAL_BATCH": "4", "DATA_CACHE_PATH": str(tmp_path), "DATA_FILE_LIST": "list.txt", "BOOKS": str(tmp_path)},
        **{"TOKENIZER_TYPE": "NullTokenizer", "VOCAB_SIZE": "512", "EVAL_INTERVAL": "0", "OTHER": "1"},
    }
    monkeypatch.setenv("BOOKS", env["BOOKS"])
    job = prepare(TrainRequest(None, (), env, "h", ROOT, sys.executable))
    for plan in (job.plan, plan_attempt(job, job.allocation, 1, 0.0), plan_attempt(job, job.allocation, 1, 1e9)):
        assert plan.env["BOOKS"] == str(tmp_path)
        assert "OTHER" not in plan.env
    monkeypatch.delenv("BOOKS")
    with pytest.raises(DataError, match="BOOKS is not set; export BOOKS=FOLDER"):
        prepare(TrainRequest(None, (), env, "h", ROOT, sys.executable))


def test_a_cpu_keeps_as_much_whatever_the_machine_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        **{"MEGADS_DEVICE": "cpu", "NLAYERS": "2", "HIDDEN": "64", "HEADS": "4", "SEQ": "32", "DTYPE": "bf16"},
        **{"NUM_KV_HEAD": "4", "FFN_HIDDEN_SIZE": "128", "TRAIN_ITERS": "3", "DATA_CACHE_PATH": str(tmp_path)},
        **{"GLOBAL_BATCH": "8", "MICRO_BATCH": "8", "NGPU_PER_HOST": "1", "EVAL_INTERVAL": "0", "LR": "1e-3"},
        **{"TOKENIZER_TYPE": "NullTokenizer", "VOCAB_SIZE": "512", "DATA_PATH": "", "SAVE_INTERVAL": "0"},
    }
    write_dataset(tmp_path, [40] * 40, vocab=500)
    env["DATA_PATH"] = str(next(tmp_path.glob("*.bin")).with_suffix(""))
    found = []
    for machine in ("cpu", "generic"):
        mine = {**env, "MACHINE": machine, "RUN_DIR": str(tmp_path / machine)}
        found.append(prepare(TrainRequest(None, (), mine, "h", ROOT, sys.executable)).memory)
    assert found[0].activations == found[1].activations > 0
