"""torch's compiler stays outside of a rank, and is there for whoever really asks for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


ENGINE = """
import sys
import torch.distributed as dist
from tests.parity.layouts import Layout
from tests.parity.loops import loop_of
from pathlib import Path
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
loop_of(Layout("llama", zero={zero}, more={{"train.dtype": "{dtype}"}}), Path("{folder}"), {{}}).run()
print(*(name for name in ("torch._dynamo.eval_frame", "torch._inductor", "sympy") if name in sys.modules))
"""


@pytest.mark.parametrize(("zero", "dtype"), [(1, "bf16"), (3, "fp32"), (0, "fp32")])
def test_a_run_does_not_import_it(zero, dtype, tmp_path):
    out = python(ENGINE.format(zero=zero, dtype=dtype, folder=tmp_path))
    assert out.splitlines()[-1] == ""


def test_who_asks_for_more_gets_the_compiler():
    out = python("""
import sys, torch
from megads.engine.library import import_deepspeed
import_deepspeed()
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
optimizer.zero_grad()
torch.compiler.disable(model.forward)(torch.ones(1, 2))
door = sys.modules["torch._dynamo"]
print(type(door).__name__, "sympy" in sys.modules)
print(torch.compile(lambda x: 2 * x, backend="eager")(torch.ones(1)).item())
print(sys.modules["torch._dynamo"] is door, torch._dynamo.is_compiling(), torch._dynamo.eval_frame.__name__)
from torch._dynamo.utils import counters
print(counters["stats"]["unique_graphs"])
""")
    assert out.splitlines()[-4:] == ["Door False", "2.0", "False False torch._dynamo.eval_frame", "1"]


LOOK = "import importlib.util; assert importlib.util.find_spec('torch._dynamo.utils')"


@pytest.mark.parametrize(
    "what", ["import torch._dynamo.config", "from torch._dynamo import utils", "import torch._inductor", LOOK]
)
def test_a_part_of_it_is_the_compilers_own(what):
    out = python(f"""
import sys, torch
from megads.engine.library import import_deepspeed
import_deepspeed()
door = sys.modules["torch._dynamo"]
{what}
import torch._dynamo
import torch._dynamo.config, torch._dynamo.utils, torch._dynamo.eval_frame
for name in ("config", "utils", "eval_frame"):
    module = sys.modules["torch._dynamo." + name]
    assert getattr(sys.modules["torch._dynamo"], name) is module, name
    assert module.__spec__.origin, name
# Who looks at the settings and who changes them mean the same.
assert torch._dynamo.eval_frame.config is torch._dynamo.config
assert torch._dynamo is not door
torch._dynamo.config.cache_size_limit = 3
print(torch._dynamo.eval_frame.config.cache_size_limit, door.config is torch._dynamo.config)
""")
    assert out.splitlines()[-1] == "3 True"


def test_it_stays_where_somebody_has_it_already():
    out = python("""
import sys, torch, torch._dynamo
before = sys.modules["torch._dynamo"]
from megads.engine.library import import_deepspeed
import_deepspeed()
print(sys.modules["torch._dynamo"] is before)
""")
    assert out.splitlines()[-1] == "True"
