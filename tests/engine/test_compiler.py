"""torch's compiler is not imported by a rank, unless something uses it or a setting says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ranks import Ranks

ROOT = Path(__file__).parents[3]

BEGIN = """
import io, json, os, sys, traceback
import torch
{imports}
for code in json.load(sys.stdin):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(writing, 1)
            os.close(reading)
            exec(code, {{"__name__": "__main__"}})
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with open(reading) as file:
        printed = file.read()
    status = os.waitpid(pid, 0)[1]
    sys.stderr.write(json.dumps([os.waitstatus_to_exitcode(status), printed]) + chr(10))
"""


def outputs(imports: str, codes: list[str]) -> list[str]:
    """Return what each of ``codes`` prints, in a process of its own that is forked from a new one with ``imports``."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN.format(imports=imports)],
        cwd=ROOT,
        input=json.dumps(codes),
        capture_output=True,
        text=True,
        check=True,
    )
    answers = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("[") and line.endswith("]")]
    assert [code for code, _ in answers] == [0] * len(codes), done.stderr
    return [printed for _, printed in answers]


ENGINE = """
import sys
del sys.modules["torch._dynamo"]  # ranks make their group before they postpone the compiler
import torch.distributed as dist
from tests.parity.layouts import Layout
from tests.parity.loops import loop_of
from pathlib import Path
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
loop_of(Layout("llama", zero={zero}, more={{"train.dtype": "{dtype}", **{more}}}), Path("{folder}"), {{}}).run()
print(*(name for name in ("torch._dynamo.eval_frame", "torch._inductor", "sympy") if name in sys.modules))
"""
KINDS = [(1, "bf16"), (3, "fp32"), (0, "fp32")]
AT_START = [
    {"deepspeed.torch_compiler": "at_start"},
    {"deepspeed.config_overrides": '{"compile": {"deepcompile": true}}'},
]
ASKS = """
import sys, torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
optimizer.zero_grad()
torch.compiler.disable(model.forward)(torch.ones(1, 2))
stand_in = sys.modules["torch._dynamo"]
print(type(stand_in).__name__, "sympy" in sys.modules)
print(torch.compile(lambda x: 2 * x, backend="eager")(torch.ones(1)).item())
print(sys.modules["torch._dynamo"] is stand_in, torch._dynamo.is_compiling(), torch._dynamo.eval_frame.__name__)
from torch._dynamo.utils import counters
print(counters["stats"]["unique_graphs"])
"""
# What is excluded before the compiler is imported, and what torch's own decorators have kept, stays out of graphs.
EXCLUDED = """
import sys, torch
import torch._dynamo
def half(x): return x / 2
kept = torch._dynamo.disable(half)
class Twice:
    @torch._compile._disable_dynamo
    def __call__(self, x): return 2 * x
twice = Twice()
assert (kept(torch.ones(1)).item(), twice(torch.ones(1)).item()) == (0.5, 2.0)
assert kept.__name__ == "half"
print(type(sys.modules["torch._dynamo"]).__name__)
def both(x): return twice(kept(x) + 3) + 4
print(torch.compile(both, backend="eager")(torch.ones(1)).item())
explained = torch._dynamo.explain(both)(torch.ones(1))
seen = [node.target.__name__ for graph in explained.graphs for node in graph.graph.nodes if node.op == "call_function"]
print(seen.count("truediv"), seen.count("mul"))
"""
LOOK = "import importlib.util; assert importlib.util.find_spec('torch._dynamo.utils')"
PARTS = ["import torch._dynamo.config", "from torch._dynamo import utils", "import torch._inductor", LOOK]
PART = """
import sys, torch
stand_in = sys.modules["torch._dynamo"]
{what}
import torch._dynamo
import torch._dynamo.config, torch._dynamo.utils, torch._dynamo.eval_frame
for name in ("config", "utils", "eval_frame"):
    module = sys.modules["torch._dynamo." + name]
    assert getattr(sys.modules["torch._dynamo"], name) is module, name
    assert module.__spec__.origin, name
# Who looks at the settings and who changes them mean the same.
assert torch._dynamo.eval_frame.config is torch._dynamo.config
assert torch._dynamo is not stand_in
torch._dynamo.config.cache_size_limit = 3
print(torch._dynamo.eval_frame.config.cache_size_limit, stand_in.config is torch._dynamo.config)
"""
INSPECT = """
import sys, inspect
import torch.distributed.tensor  # registers operators, which looks for their source
inspect.getmodule(sys._getframe())
print(type(sys.modules["torch._dynamo"]).__name__)
"""
STAYS = """
import sys, torch._dynamo
before = sys.modules["torch._dynamo"]
from megads.engine.compiler import postpone_compiler
postpone_compiler()
print(sys.modules["torch._dynamo"] is before)
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """What each code prints where DeepSpeed was imported as ranks do."""
    runs = [ENGINE.format(zero=z, dtype=dtype, more={}, folder=tmp_path_factory.mktemp("run")) for z, dtype in KINDS]
    codes = [*runs, ASKS, INSPECT, EXCLUDED, *(PART.format(what=what) for what in PARTS)]
    import_it = (
        "from megads.engine.compiler import postpone_compiler; postpone_compiler()\n"
        "from megads.engine.deepspeed.package import import_deepspeed; import_deepspeed()"
    )
    return dict(zip([*KINDS, "asks", "inspect", "excluded", *PARTS], outputs(import_it, codes), strict=True))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_run_does_not_import_it(kind, imported):
    assert imported[kind].splitlines()[-1] == ""


@pytest.mark.parametrize("more", AT_START, ids=str)
def test_a_run_that_compiles_or_says_so_imports_it_at_the_start(more, tmp_path):
    code = ENGINE.split("import torch.distributed")[1].format(zero=3, dtype="fp32", more=more, folder=tmp_path)
    assert (
        "torch._dynamo.eval_frame" in outputs("", ["import sys\nimport torch.distributed" + code])[0].splitlines()[-1]
    )


def test_who_asks_for_more_gets_the_compiler(imported):
    assert imported["asks"].splitlines()[-4:] == [
        "PostponedCompiler False",
        "2.0",
        "False False torch._dynamo.eval_frame",
        "1",
    ]


def test_who_looks_for_sources_leaves_it_where_it_is(imported):
    assert imported["inspect"].splitlines()[-1] == "PostponedCompiler"


def test_what_was_excluded_before_its_import_is_compiled_by_nobody(imported):
    assert imported["excluded"].splitlines()[-3:] == ["PostponedCompiler", "11.0", "0 0"]


@pytest.mark.parametrize("what", PARTS)
def test_a_part_of_it_is_the_compilers_own(what, imported):
    assert imported[what].splitlines()[-1] == "3 True"


def test_it_stays_where_somebody_has_it_already():
    assert outputs("", [STAYS])[0].splitlines()[-1] == "True"


def _trains_without_it() -> None:
    from tests.engine.plain import plain_loop, settings

    plain_loop(settings({}))
    assert "torch._dynamo.eval_frame" not in sys.modules


def train_in_a_pool() -> None:
    """Run the loop in a rank of a new pool."""
    pool = Ranks(1)
    try:
        pool.run(_trains_without_it)
    finally:
        pool.close()


def test_a_loop_to_compare_with_does_not_import_it_in_a_rank_of_a_pool():
    """Half a second of every rank of every pool; pools of this process may have it from another test."""
    outputs("", ["from tests.engine.test_compiler import train_in_a_pool; train_in_a_pool()"])
