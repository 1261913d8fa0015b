"""What a run that repeats bit for bit sets for its ranks, and what it refuses before they start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from megads.config.rules.stability import rank_variables
from megads.errors import ConfigError
from megads.launch.plan_run import prepare
from megads.launch.request import TrainRequest
from tests.config.advice import check
from tests.engine.plain import settings

ROOT = Path(__file__).parents[3]
ON = settings({}, **{"stability.deterministic": "true"})
DEFAULTS = {"NCCL_ALGO": "Ring", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, DEFAULTS),
        ({"NCCL_ALGO": "", "OTHER": "1"}, DEFAULTS),
        ({"NCCL_ALGO": "ring"}, {**DEFAULTS, "NCCL_ALGO": "ring"}),
        ({"NCCL_ALGO": "^NVLS"}, {**DEFAULTS, "NCCL_ALGO": "^NVLS"}),
        ({"NCCL_ALGO": "CollnetDirect,Ring"}, {**DEFAULTS, "NCCL_ALGO": "CollnetDirect,Ring"}),
        ({"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, {**DEFAULTS, "CUBLAS_WORKSPACE_CONFIG": ":16:8"}),
    ],
)
def test_variables_of_the_ranks(env, expected):
    assert rank_variables(ON, env) == expected
    assert rank_variables(settings({}), env) == {}


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (
            {"NCCL_ALGO": "Tree"},
            "DETERMINISTIC=1 and NCCL_ALGO=Tree: its sums may differ from run to run; unset NCCL_ALGO, "
            "or use Ring or CollnetDirect or CollnetChain or ^NVLS",
        ),
        ({"NCCL_ALGO": "Ring,Tree"}, "NCCL_ALGO=Ring,Tree"),
        ({"CUBLAS_WORKSPACE_CONFIG": ":0:0"}, "unset CUBLAS_WORKSPACE_CONFIG, or use :4096:8 or :16:8"),
    ],
)
def test_variables_that_break_it_are_refused(env, told):
    with pytest.raises(ConfigError) as caught:
        rank_variables(ON, env)
    assert told in str(caught.value)


def test_attention_that_adds_in_any_order_is_refused():
    run = settings({}, **{"stability.deterministic": "true", "model.attention": "flash", "train.dtype": "bf16"})
    with pytest.raises(ConfigError) as caught:
        check(run, 1)
    assert str(caught.value).startswith(
        "DETERMINISTIC=1 and ATTENTION=flash: flash-attn sums gradients in no fixed order"
    )
    assert "ATTENTION=sdpa" in str(caught.value)


def train_request(folder: Path, **more: str) -> TrainRequest:
    env = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        **{"MACHINE": "cpu", "MEGADS_DEVICE": "cpu", "NLAYERS": "2", "HIDDEN": "64", "HEADS": "4", "SEQ": "32"},
        **{"NUM_KV_HEAD": "4", "FFN_HIDDEN_SIZE": "128", "RUN_DIR": str(folder / "r"), "TRAIN_ITERS": "3"},
        **{"GLOBAL_BATCH": "8", "MICRO_BATCH": "2", "TP": "2", "DATA_CACHE_PATH": str(folder)},
    }
    return TrainRequest(None, (), {**env, **more}, "h", ROOT, sys.executable)


def test_every_rank_gets_the_variables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = prepare(train_request(tmp_path, DETERMINISTIC="1")).plan
    assert {name: plan.env[name] for name in DEFAULTS} == DEFAULTS
    assert not DEFAULTS.keys() & prepare(train_request(tmp_path)).plan.env.keys()
    with pytest.raises(ConfigError, match="NCCL_ALGO=Tree"):
        prepare(train_request(tmp_path, DETERMINISTIC="1", NCCL_ALGO="Tree"))
