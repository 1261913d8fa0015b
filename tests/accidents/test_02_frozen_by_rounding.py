"""Row 2: norm weights in bf16 masters never moved for 33,700 steps; here the first update says so."""

from __future__ import annotations

BF16_MASTERS = """
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

def rounded(optimizer, *_):
    for group in optimizer.param_groups:
        for each in group["params"]:
            each.data.copy_(each.data.bfloat16())

register_optimizer_step_post_hook(rounded)
"""
SETTINGS = {"LR": "1e-4", "TRAIN_ITERS": "4", "EVAL_INTERVAL": "0", "DTYPE": "bf16"}


def test_weights_that_no_update_moves_are_named_in_the_first_steps(megads):
    healthy = megads.train("runs/healthy", **SETTINGS)
    assert healthy.returncode == 0, healthy.stderr
    assert "round to zero" not in healthy.stderr
    log = (megads.folder / "runs/healthy/log/run.log").read_text()
    assert ": 0.0 % of the updates round to zero in the masters; " in log
    run = megads.train("runs/frozen", PYTHONPATH=megads.plant(BF16_MASTERS), **SETTINGS)
    assert run.returncode == 0, run.stderr
    lines = [line for line in run.stderr.splitlines() if "round to zero at" in line]
    assert any(
        line.startswith("step 2: 100% of the updates of layers.*.input_norm.weight round to zero at lr ")
        and line.endswith("these weights do not train; keep their masters in float32, or raise LR")
        for line in lines
    ), run.stderr
    rows = [row for row in megads.rows("runs/frozen") if "rounded_updates" in row]
    assert [row["iteration"] for row in rows][:1] == [2]
    assert rows[0]["rounded_updates/final_norm.weight"] == 1.0
