"""What does not go with an optimizer."""

from __future__ import annotations

import pytest

from megads.config.derive import derive
from megads.config.rules.optimizer import smallest_side
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError
from tests.config.advice import check


def _run(env: dict[str, str], ranks: int = 1, machine: str = "generic") -> RunConfig:
    resolved = resolve("tiny", env={"TRAIN_ITERS": "10", "GALORE_RANK": "8", **env}, machine=machine)
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=500).run


def _refusal(env: dict[str, str], ranks: int = 1) -> str:
    with pytest.raises(ConfigError) as told:
        check(_run(env, ranks), ranks)
    return str(told.value)


@pytest.mark.parametrize(
    ("env", "line"),
    [
        (
            {"OPT": "ds.adamw"},
            "OPT=ds.adamw steps weights that are on the host, and OFFLOAD_OPTIMIZER=none; "
            "use OFFLOAD_OPTIMIZER=cpu or OPT=adamw",
        ),
        (
            {"OPT": "ds.adamw", "ZERO_STAGE": "0", "DTYPE": "fp32"},
            "OPT=ds.adamw steps weights that are on the host, and OFFLOAD_OPTIMIZER=none; "
            "use OPT=adamw or OFFLOAD_OPTIMIZER=cpu ZERO_STAGE=1",
        ),
        (
            {"OPT": "apex.adam", "OFFLOAD_OPTIMIZER": "cpu"},
            "OPT=apex.adam steps weights that are on the device, and OFFLOAD_OPTIMIZER=cpu keeps them on the host; "
            "use OFFLOAD_OPTIMIZER=none or OPT=adamw",
        ),
        (
            {"OPT": "galoreadamw", "GALORE_RANK": "65"},
            "GALORE_RANK=65 is more than the smaller side of a layer's matrix, 64; "
            "use GALORE_RANK=16, GALORE_RANK=64 or OPT=adamw",
        ),
        (
            {"OPT": "adamwschedulefree", "ADAM_BETA1": "0"},
            "ADAM_BETA1=0: OPT=adamwschedulefree divides by it to find the average; use ADAM_BETA1=0.9",
        ),
        (
            {"OPT": "sgdschedulefree", "SGD_MOMENTUM": "0"},
            "SGD_MOMENTUM=0: OPT=sgdschedulefree divides by it to find the average; use SGD_MOMENTUM=0.9",
        ),
    ],
)
def test_settings_that_do_not_go_with_an_optimizer(env, line):
    assert _refusal(env) == line


@pytest.mark.parametrize("env", [{}, {"NO_LLAMA": "1"}, {"NUM_KV_HEAD": "1", "HEAD_DIM": "8"}])
def test_the_smallest_side_is_that_of_the_model(env):
    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.models.build import build_model

    run = _run(env)
    named = build_model(run, Groups(Grid(), 0)).named_parameters()
    assert smallest_side(run.model) == min(min(w.shape) for n, w in named if n.startswith("layers.") and w.dim() == 2)
