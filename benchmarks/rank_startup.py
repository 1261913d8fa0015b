"""What a rank costs before it has learnt anything: processor time, modules and memory until its first step is done.

    python benchmarks/rank_startup.py [--rounds 5]

Both engines against programs of ten lines that do the same with torch.optim.AdamW, one on torch alone and one with
DeepSpeed (one rank, ZeRO 1, a model of two numbers), in processes of their own, one after the other in
turns. Files are in the page cache: on a shared file system every module costs far more. DeepSpeed
would first compile its kernels for collectives in shared memory; here it does without them, as
megads does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TELL = """
import json, resource, sys, time
used = resource.getrusage(resource.RUSAGE_SELF)
resident = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
print(json.dumps([used.ru_utime + used.ru_stime, len(sys.modules), resident / 1024]))
"""
TORCH = (
    """
import torch
from torch import nn
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
model = nn.Linear(1, 1)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(1, 1)).sum().backward()
optimizer.step()
"""
    + TELL
)
DEEPSPEED = (
    """
import deepspeed, torch
from torch import nn
deepspeed.ops.__compatible_ops__.clear()
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
model = nn.Linear(1, 1)
config = {"train_batch_size": 1, "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True}
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=config)
engine.backward(engine(torch.ones(1, 1)).sum())
engine.step()
"""
    + TELL
)
OURS = (
    """
import sys
from pathlib import Path
import torch
from megads.cluster.ranks import find_ranks
from megads.config.run_folder import load_config
from megads.comm.groups import join_ranks
from megads.train.setup import end_of_document
from megads.engine.build import make_engine
import megads.train.worker
run = load_config(Path(sys.argv[1]))
_, device, groups = join_ranks(run, find_ranks({}), {"MEGADS_DEVICE": "cpu"})
engine = make_engine(run, groups, device)
engine.train_step([torch.zeros(1, run.model.seq_length + 1, dtype=torch.int64)], 0.1)
"""
    + TELL
)
SMALL = {
    **{"MACHINE": "cpu", "HIDDEN": "8", "HEADS": "1", "FFN_HIDDEN_SIZE": "8", "NLAYERS": "1", "SEQ": "8"},
    **{
        "TOKENIZER_TYPE": "NullTokenizer",
        "VOCAB_SIZE": "16",
        "MICRO_BATCH": "1",
        "GRAD_ACC_STEPS": "1",
        "DTYPE": "fp32",
    },
}


def settings(folder: Path, engine: str) -> Path:
    """Return the settings file of a tiny run of one rank."""
    from megads.config.derive import derive
    from megads.config.run_folder import save_config
    from megads.config.sources.resolve import resolve

    env = {**SMALL, "ZERO_STAGE": "1", "ENGINE": engine}
    asked = resolve(None, env=env, overrides={"dir": str(folder)}, machine="cpu", root=ROOT)
    resolved = derive(asked, num_hosts=1, ranks_per_host=1, vocab_size=16)
    path = folder / f"{engine}.yaml"
    save_config(resolved.run, resolved.origins, path)
    return path


def measured(code: str, *words: str) -> list[float]:
    """Return seconds of the processor, modules and MiB of one process."""
    env: dict[str, Any] = {**os.environ, "OMP_NUM_THREADS": "1", "LOCAL_RANK": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=env, capture_output=True, text=True, check=True, cwd=ROOT
    )
    return list(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        run = {engine: str(settings(Path(folder), engine)) for engine in ("native", "deepspeed")}
        programs = {
            "megads": (OURS, run["native"]),
            "plain torch": (TORCH,),
            "megads, DeepSpeed": (OURS, run["deepspeed"]),
            "plain DeepSpeed": (DEEPSPEED,),
        }
        found: dict[str, list[list[float]]] = {name: [] for name in programs}
        for _ in range(rounds):
            for name, program in programs.items():
                found[name].append(measured(*program))
    print(f"{'median of ' + str(rounds):18} {'processor s':>12} {'modules':>8} {'MiB':>6}")
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}
    for name, (seconds, modules, resident) in medians.items():
        print(f"{name:18} {seconds:12.2f} {modules:8.0f} {resident:6.0f}")
    for ours, plain in (("megads", "plain torch"), ("megads, DeepSpeed", "plain DeepSpeed")):
        ratios = [one / other for one, other in zip(medians[ours], medians[plain], strict=True)]
        print(f"{'/ ' + plain:18} {ratios[0]:12.2f} {ratios[1]:8.2f} {ratios[2]:6.2f}")


if __name__ == "__main__":
    main()
