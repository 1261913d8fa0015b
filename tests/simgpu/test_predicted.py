"""Devices that the launcher does not know: rank 0 predicts by their name, and compares after ten steps."""

from __future__ import annotations

import json
import re

import pytest

from tests.e2e.conftest import Command
from tests.simgpu.device import have_device

NAMED = """
if "worker" in sys.argv:
    from tests.simgpu.device import start
    start(devices=2)
    import torch
    from tests.simgpu.module import NAME
    from types import SimpleNamespace
    module = torch.get_device_module(NAME)
    module.get_device_name = lambda device=None: "NVIDIA H100 80GB HBM3"
    of = module.get_device_properties
    units = {"multi_processor_count": 132}
    module.get_device_properties = lambda device=None: SimpleNamespace(**{**vars(of(device)), **units})
"""
"""To plant: every rank has a device that calls itself an H100."""


@pytest.mark.dist
def test_rank_0_predicts_and_says_why_a_simulation_is_slower(tmp_path, tmp_path_factory):
    have_device()
    megads = Command(tmp_path, tmp_path_factory.mktemp("cache"))
    settings = {"TRAIN_ITERS": "12", "NGPU_PER_HOST": "2", "EVAL_INTERVAL": "0", "DTYPE": "bf16"}
    done = megads.train("r", **settings, PYTHONPATH=megads.plant(NAMED))
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "r/log/run.log").read_text().splitlines()
    (step,) = [line for line in log if " step     about " in line]
    assert " predicted (h100; on measured runs off by " in step
    assert " tokens/s, mfu " in step
    plans = [line for line in log if "plan     " in line]
    assert len(plans) == 2  # after ten steps, and in the summary
    after = next(n for n, line in enumerate(log) if "step 10/12 |" in line)
    assert plans[0] in log[after : after + 3]
    assert re.search(r" per step, predicted \S+ ms: \d+% slower, likely \w.*; memory .*, predicted ", plans[0])
    assert "likely" not in plans[1]
    outcome = json.loads((tmp_path / "r/outcome.json").read_text())
    assert (outcome["device"], outcome["world_size"], outcome["per_host"]) == ("NVIDIA H100 80GB HBM3", 2, 2)
    assert set(outcome["predicted"]) == {"step_s", "tokens_per_s", "memory_bytes"}
    assert {"step_s", "forward_s", "communication_s", "memory_bytes"} <= set(outcome["measured"])
    rows = [row for row in megads.rows("r") if "lm_loss" in row]
    assert all(row["predicted_step_s"] == outcome["predicted"]["step_s"] for row in rows)
