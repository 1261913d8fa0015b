"""Building the native engine and a step import neither DeepSpeed nor torch's compiler nor sympy: that is seconds."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import torch
from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.engine.build import make_engine
from tests.engine.plain import NATIVE, batches, rate, settings

run = settings({}, **NATIVE)
engine = make_engine(run, Groups(Grid(), 0), torch.device("cpu"))
assert engine.train_step(batches(run, 0, 0), rate(0)).grad_norm > 0
assert "deepspeed" not in sys.modules
assert "torch._dynamo.eval_frame" not in sys.modules
assert "sympy" not in sys.modules
"""


def test_a_step_needs_none_of_them():
    subprocess.run([sys.executable, "-c", CODE], check=True)
