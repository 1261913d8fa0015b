"""Save and load bandwidth of a checkpoint against the raw file system, torch.save and torch.distributed.checkpoint.

::

    python -m benchmarks.checkpoint [--folder DIR] [--millions 500] [--ranks 2] [--rounds 5] [--gap 0]
    python -m benchmarks.checkpoint --quick     # a hundredth of it, two rounds

Real gloo ranks each hold a share of a state of float32 weights and two moments (12 bytes a parameter)
and write it, and read it, in turns by

* raw: the same bytes by plain writes, one file a rank, fsync; plain reads into the same memory;
* megads: ``Saver.save`` with checksums, manifest and atomic rename; ``load_shards``, every byte checked;
* torch.save: one file a rank, then fsync; ``torch.load`` and a copy into the same memory;
* dcp: ``torch.distributed.checkpoint.save`` (which syncs its files) and ``load``.

Every method starts from an empty folder; files are dropped from the page cache before they are read,
where the file system can (not in memory). A method's time is the slowest rank's. Rounds rotate the
order. A shared disk is fast in bursts: --gap waits before each write. Then the pause of training:
what ``start`` and ``finish`` of a save in the background take, against the blocking save, while the
rank works on; and what the saving costs that work. Prints medians and writes nothing else.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import Tensor

from megads.checkpoint.format.reader import Reader
from megads.checkpoint.format.shard_layout import ShardLayout
from megads.checkpoint.load import load_shards
from megads.checkpoint.owned_shard import OwnedShard
from megads.checkpoint.resume.progress import Progress
from megads.checkpoint.save import Saver, Snapshot
from megads.comm.grid import Grid
from megads.comm.groups import Groups, make_groups

KINDS = ("weight", "exp_avg", "exp_avg_sq")
WIDTH, ROWS = 2048, 4096
"""Of a parameter: 8 million numbers, as a projection of a model of some billions."""
CALL = 8 << 20
"""Bytes of a plain write or read."""


@dataclass(frozen=True)
class Options:
    """What is measured."""

    folder: Path
    millions: float
    ranks: int
    rounds: int
    gap: float


def make_pieces(options: Options, rank: int) -> list[OwnedShard]:
    """Return a rank's share of every parameter, and half as many small ones, as norms are."""
    count = int(options.millions * 1e6)
    whole = [("big", WIDTH * ROWS)] * (count // (WIDTH * ROWS))
    shapes = [*whole, ("rest", max(WIDTH, count % (WIDTH * ROWS) // WIDTH * WIDTH)), *[("small", WIDTH)] * len(whole)]
    generator = torch.Generator().manual_seed(rank)
    pieces = []
    for number, (kind, size) in enumerate(shapes):
        cut = ShardLayout((size,) if kind == "small" else (size // WIDTH, WIDTH))
        first, last = rank * size // options.ranks, (rank + 1) * size // options.ranks
        tensors = {each: torch.empty(last - first).normal_(generator=generator) for each in KINDS}
        pieces.append(OwnedShard(f"layers.{number}.{kind}.weight", cut, first, tensors))
    return pieces


class Method:
    """One way to save the pieces of a rank to ``folder`` and to load them again. Both are collective."""

    def __init__(self, pieces: list[OwnedShard], groups: Groups, folder: Path):
        self.pieces, self.groups, self.folder = pieces, groups, folder
        self.tensors = {f"{kind}/{piece.name}": piece.tensors[kind] for kind in KINDS for piece in pieces}
        self.file = folder / f"rank-{groups.rank}"

    def save(self) -> None:
        raise NotImplementedError

    def load(self) -> None:
        raise NotImplementedError


class Raw(Method):
    def save(self) -> None:
        handle = os.open(self.file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        for tensor in self.tensors.values():
            view = tensor.numpy().data.cast("B")
            for at in range(0, len(view), CALL):
                os.write(handle, view[at : at + CALL])
        os.fsync(handle)
        os.close(handle)

    def load(self) -> None:
        handle = os.open(self.file, os.O_RDONLY)
        for tensor in self.tensors.values():
            view = tensor.numpy().data.cast("B")
            while view:
                view = view[os.readv(handle, [view[:CALL]]) :]
        os.close(handle)


class Ours(Method):
    @property
    def saver(self) -> Saver:
        return Saver(self.folder, self.groups)

    def snapshot(self) -> Snapshot:
        layout = {"pipe": 1, "data": self.groups.grid.data, "seq": 1, "tensor": 1, "zero_stage": 1}
        tensors = {piece.name: piece.cut.of(0, 1) for piece in self.pieces}
        return Snapshot(
            Progress(1), self.pieces, scalars={}, tensors=tensors, model={}, settings={}, about={}, layout=layout
        )

    def save(self) -> None:
        self.saver.save(self.snapshot())

    def load(self) -> None:
        with Reader(self.folder / "iter_0000001") as reader:
            load_shards(reader, self.pieces, KINDS)


class TorchSave(Method):
    def save(self) -> None:
        with open(self.file, "wb") as file:
            torch.save(self.tensors, file)
            file.flush()
            os.fsync(file.fileno())

    def load(self) -> None:
        for key, tensor in torch.load(self.file, weights_only=True).items():
            self.tensors[key].copy_(tensor)


class Dcp(Method):
    @property
    def state(self) -> dict[str, Tensor]:
        return {f"{self.groups.rank}/{key}": tensor for key, tensor in self.tensors.items()}

    def save(self) -> None:
        dcp.save(self.state, checkpoint_id=self.folder)

    def load(self) -> None:
        dcp.load(self.state, checkpoint_id=self.folder)


METHODS: dict[str, type[Method]] = {"raw": Raw, "megads": Ours, "torch.save": TorchSave, "dcp": Dcp}


def seconds(work: Callable[[], object]) -> float:
    """Return what the slowest rank takes."""
    dist.barrier()
    started = time.perf_counter()
    work()
    dist.barrier()
    return time.perf_counter() - started


def drop_from_cache(folder: Path) -> None:
    """Have the next read come from the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def empty(folder: Path, groups: Groups) -> None:
    dist.barrier()
    if groups.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    dist.barrier()


def turn(method: Method, groups: Groups, gap: float) -> tuple[float, float]:
    """Return the seconds of one save and one load, after which the numbers are what they were."""
    empty(method.folder, groups)
    time.sleep(gap)
    before = [float(tensor[:: max(1, tensor.numel() // 97)].sum()) for tensor in method.tensors.values()]
    saved = seconds(method.save)
    if groups.rank == 0:
        drop_from_cache(method.folder)
    for tensor in method.tensors.values():
        tensor.zero_()
    loaded = seconds(method.load)
    after = [float(tensor[:: max(1, tensor.numel() // 97)].sum()) for tensor in method.tensors.values()]
    assert after == before, f"{type(method).__name__} lost numbers"
    empty(method.folder, groups)
    return saved, loaded


class Work:
    """What a rank does besides saving, in place of training: products of matrices."""

    def __init__(self) -> None:
        self.left, self.right = torch.randn(512, 512), torch.randn(512, 512)

    def step(self) -> float:
        started = time.perf_counter()
        for _ in range(10):
            torch.mm(self.left, self.right)
        dist.barrier()
        return time.perf_counter() - started


def pause(ours: Ours, groups: Groups, gap: float) -> dict[str, float]:
    """Return the seconds of a blocking save, and those that training pauses for one in the background."""
    work = Work()
    empty(ours.folder, groups)
    time.sleep(gap)
    saver = Saver(ours.folder, groups)
    saver.reserve(ours.pieces)
    blocking = seconds(lambda: saver.save(ours.snapshot()))
    empty(ours.folder, groups)
    time.sleep(gap)
    alone = statistics.median(work.step() for _ in range(20))
    started = seconds(lambda: saver.start(ours.snapshot()))
    beside = []
    while _any_writing(saver):
        beside.append(work.step())
    finished = seconds(saver.finish)
    empty(ours.folder, groups)
    slower = sum(beside) / len(beside) / alone if beside else 1.0
    return {"blocking s": blocking, "pause s": started + finished, "steps beside": len(beside), "step ratio": slower}


def _any_writing(saver: Saver) -> bool:
    """Return whether a rank is still writing, as a run learns it with its other flags."""
    state = torch.tensor(saver.state)
    dist.all_reduce(state, dist.ReduceOp.MAX)
    return int(state) == 1


def rank_main(rank: int, options: Options, answers: Any) -> None:
    """Measure everything, as one rank; rank 0 answers."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        rank=rank,
        world_size=options.ranks,
        store=dist.FileStore(str(options.folder / "store"), options.ranks),
        timeout=timedelta(seconds=600),
    )
    groups = make_groups(Grid(data=options.ranks), rank)
    pieces = make_pieces(options, rank)
    methods = {name: kind(pieces, groups, options.folder / "state") for name, kind in METHODS.items()}
    found: dict[str, list[float]] = {f"{name} {way}": [] for name in methods for way in ("save", "load")}
    for number in range(options.rounds):
        order = list(methods)
        for name in order[number % len(order) :] + order[: number % len(order)]:
            saved, loaded = turn(methods[name], groups, options.gap)
            found[f"{name} save"].append(saved)
            found[f"{name} load"].append(loaded)
            if rank == 0:
                print(f"  {number + 1}/{options.rounds} {name:12} {saved:7.2f} s save {loaded:7.2f} s load", flush=True)
    ours = methods["megads"]
    assert isinstance(ours, Ours)
    pauses = [pause(ours, groups, options.gap) for _ in range(options.rounds)]
    if rank == 0:
        found |= {name: [each[name] for each in pauses] for name in pauses[0]}
        answers.put((sum(piece.cut.count for piece in pieces) * 12, found))
    dist.destroy_process_group()


def measure(options: Options) -> tuple[int, dict[str, list[float]]]:
    """Return the bytes of the state, and of every method the seconds of each round."""
    context = mp.get_context("spawn")
    answers = context.SimpleQueue()
    mp.spawn(rank_main, (options, answers), nprocs=options.ranks)
    return answers.get()


def report(size: int, found: dict[str, list[float]]) -> dict[str, float]:
    """Print a table and return the figures by name."""
    figures = {}
    print(f"{'':12}{'save GB/s':>11}{'of raw':>8}{'  (rounds)':30}{'load GB/s':>11}{'of raw':>8}")
    for name in METHODS:
        cells = ""
        for way in ("save", "load"):
            rates = [size / 1e9 / each for each in found[f"{name} {way}"]]
            # Of the same round: a disk that others use is not as fast in each.
            ratios = [raw / mine for raw, mine in zip(found[f"raw {way}"], found[f"{name} {way}"], strict=True)]
            figures[f"{name} {way} GB/s"] = statistics.median(rates)
            figures[f"{name} {way} ratio"] = statistics.median(found[f"raw {way}"]) / statistics.median(
                found[f"{name} {way}"]
            )
            figures[f"{name} {way} paired"] = statistics.median(ratios)
            shown = " ".join(f"{rate:.2f}" for rate in rates)
            cells += f"{statistics.median(rates):11.2f}{figures[f'{name} {way} ratio']:8.2f}  {f'({shown})':28}"
        print(f"{name:12}{cells}")
    blocking, stands = statistics.median(found["blocking s"]), statistics.median(found["pause s"])
    figures |= {"blocking s": blocking, "pause s": stands, "pause share": stands / blocking}
    print(
        f"background save: training stands still for {stands:.2f} s, {100 * stands / blocking:.1f} % of the blocking "
        f"save's {blocking:.2f} s; steps beside it take {statistics.median(found['step ratio']):.2f} times as long"
    )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where; default: the folder for temporary files")
    parser.add_argument("--millions", type=float, default=500, help="parameters")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gap", type=float, default=0, help="seconds of rest before each write")
    parser.add_argument("--quick", action="store_true", help="a hundredth of it, two rounds")
    args = parser.parse_args()
    millions, rounds = (args.millions / 100, 2) if args.quick else (args.millions, args.rounds)
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="megads-") as folder:
        size, found = measure(Options(Path(folder), millions, args.ranks, rounds, args.gap))
    print(f"{millions:g} M parameters, {size / 1e9:.2f} GB, {args.ranks} ranks, {rounds} rounds")
    report(size, found)


if __name__ == "__main__":
    main()
