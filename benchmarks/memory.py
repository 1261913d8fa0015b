"""Bytes of weights, gradients and optimizer per parameter on a rank, against the published figures.

::

    python -m benchmarks.memory            # ZeRO 0 to 3, fp32, bf16 and fp16, on 1, 2 and 4 ranks
    python -m benchmarks.memory --quick    # 2 ranks only

Trains a model of some million parameters on the CPU with gloo and adds up the storage of
every live tensor at the moment when the optimizer is about to update (all gradients are
there, the activations are gone; this is what stays in memory through a step). Published:

* ZeRO (arXiv 1910.02054, section 3.1 and figure 1) for half precision: 2 weight + 2 gradient + 12 master
  and Adam; stage 1 divides the 12 by the ranks d, stage 2 also the gradient, stage 3 all.
* Megatron-LM's distributed optimizer: 16 -> 8 + 8/d in fp32, 18 -> 6 + 12/d in bf16 with gradients in fp32.
  As here gradients accumulate in fp32, this is the figure to meet; ZeRO's paper has two bytes less a gradient.
"""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SIZES = {
    "model.num_layers": "4",
    "model.hidden_size": "256",
    "model.num_heads": "4",
    "model.seq_length": "8",
    "model.vocab_multiple": "64",
    "train.micro_batch": "1",
    "train.grad_acc_steps": "2",
    "train.train_iters": "20",
    "optim.initial_loss_scale_power": "4",
    "deepspeed.param_persistence_threshold": "0",
    # A bucket is a constant that a model of this size should not drown in.
    "deepspeed.reduce_bucket_size": "1000",
    "deepspeed.allgather_bucket_size": "1000",
}
CONSTANT = 64 * 1024
"""Bytes besides the figures: padding, tables, tokens."""


@dataclass(frozen=True)
class Case:
    """One measurement."""

    stage: int
    dtype: str
    ranks: int

    @property
    def published(self) -> float:
        """Bytes per parameter with gradients in fp32."""
        weight, gradient, rest = (4, 4, 8) if self.dtype == "fp32" else (2, 4, 12)
        return _shared(self, weight, gradient, rest)

    @property
    def paper(self) -> float:
        """Bytes per parameter with gradients in the model's own type, as ZeRO's paper counts."""
        weight, gradient, rest = (4, 4, 8) if self.dtype == "fp32" else (2, 2, 12)
        return _shared(self, weight, gradient, rest)


def _shared(case: Case, weight: int, gradient: int, rest: int) -> float:
    parts = (weight, 3), (gradient, 2), (rest, 1)
    return sum(size / case.ranks if case.stage >= shared_from else size for size, shared_from in parts)


@dataclass(frozen=True)
class Found:
    """What a rank holds, in bytes."""

    case: Case
    parameters: int
    held: int  # when the optimizer is about to update
    between: int  # after the step

    @property
    def per_parameter(self) -> float:
        """Bytes per parameter, without the constant."""
        return (self.held - CONSTANT) / self.parameters

    @property
    def ratio(self) -> float:
        """Measured, constant included, to published."""
        return self.held / self.parameters / self.case.published


def cases(ranks: tuple[int, ...]) -> Iterator[Case]:
    """Yield what is measured: half precision has no ZeRO 0 (it runs as ZeRO 1)."""
    for size in ranks:
        for dtype in ("fp32", "bf16", "fp16"):
            for stage in range(0 if dtype == "fp32" else 1, 4):
                yield Case(stage, dtype, size)


def live_bytes() -> int:
    """Return the bytes of every tensor that Python can reach, each storage once."""
    import torch

    gc.collect()
    found: dict[int, int] = {}
    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor):
            for tensor in (each, each.grad if each.is_leaf else None):
                if tensor is not None:
                    storage = tensor.untyped_storage()
                    found[storage.data_ptr()] = storage.nbytes()
    found.pop(0, None)
    return sum(found.values())


def measure(case: Case) -> Found:
    """Train three steps on this rank, which is in a process group of ``case.ranks``, and look at the third."""
    import torch
    import torch.distributed as dist

    from megads.comm.grid import Grid
    from megads.comm.groups import make_groups
    from megads.config.derive import derive
    from megads.config.sources.resolve import resolve
    from megads.engine.base import whole_shape
    from megads.engine.build import make_engine

    settings = {**SIZES, "train.dtype": case.dtype, "parallel.zero_stage": str(case.stage)}
    asked = resolve(None, env={}, overrides=settings, machine="generic", root=ROOT)
    run = derive(asked, num_hosts=1, ranks_per_host=case.ranks, vocab_size=1000).run
    groups = make_groups(Grid(data=case.ranks), dist.get_rank())
    _let_fp16_run()
    before = live_bytes()
    engine: Any = make_engine(run, groups, torch.device("cpu"))
    parameters = sum(math.prod(whole_shape(each)) for each in engine.module.parameters())
    batches = [torch.randint(0, 1000, (1, run.model.seq_length + 1)) for _ in range(run.train.grad_acc_steps)]
    for _ in range(2):
        engine.train_step(batches, 1e-4)
    held: list[int] = []
    watch = engine.engine.basic_optimizer.register_step_pre_hook(lambda *_: held.append(live_bytes()))
    engine.train_step(batches, 1e-4)
    watch.remove()
    return Found(case, parameters, max(held) - before, live_bytes() - before)


def _let_fp16_run() -> None:
    """Half precision computes on every CPU, only slowly; DeepSpeed asks for the fast instructions."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    CPU_Accelerator.is_fp16_supported = lambda self: True


def run_cases(ranks: int, start: str = "spawn") -> Iterator[Found]:
    """Yield what rank 0 of ``ranks`` processes of their own finds in every case.

    Args:
        ranks: processes.
        start: how multiprocessing starts them.
    """
    context: Any = multiprocessing.get_context(start)
    with tempfile.TemporaryDirectory() as folder:
        answers: Any = context.Queue()
        processes = [context.Process(target=_rank, args=(ranks, rank, folder, answers)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for _ in cases((ranks,)):
            found: Found = answers.get(timeout=300)
            yield found
        for process in processes:
            process.join()


def _rank(ranks: int, rank: int, folder: str, answers: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=300))
    for case in cases((ranks,)):
        found = measure(case)
        if rank == 0:
            answers.put(found)
    dist.destroy_process_group()


def row(found: Found) -> str:
    """Return one line of the table."""
    case = found.case
    return (
        f"{case.dtype:5} {case.stage:4} {case.ranks:5} {found.per_parameter:9.2f} {case.published:10.2f} "
        f"{found.ratio:6.3f} {case.paper:6.2f} {found.between / found.parameters:8.2f}"
    )


def main() -> None:
    """Measure every case and print the table."""
    parser = argparse.ArgumentParser(description="Bytes per parameter of ZeRO 0 to 3, measured and published.")
    parser.add_argument("--quick", action="store_true", help="2 ranks only")
    ranks = (2,) if parser.parse_args().quick else (1, 2, 4)
    sys.stdout.write(f"bytes per parameter on a rank; measured: less {CONSTANT // 1024} KiB\n")
    sys.stdout.write("dtype ZeRO ranks  measured  published  ratio  paper  between steps\n")
    for size in ranks:
        for found in run_cases(size):
            sys.stdout.write(row(found) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
