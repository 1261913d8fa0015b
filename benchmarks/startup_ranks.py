"""What a rank opens, reads, and connects to before its first step, for several numbers of ranks.

    python benchmarks/startup_ranks.py [--ranks 16 32 64] [--model 12288]

Real processes on this host, forked from one that has imported everything, so modules are not in the table;
``--ranks 1 --interpreters`` counts what a rank reads of its environment. Every rank writes what it counted when its
first step begins: files by the folder they are in (an audit hook of Python), bytes (/proc/self/io), connections
(/proc/self/fd), and each collective with the size of its group and its bytes. ``--model N`` extends them to N ranks.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROBE = """
import json, os, sys
if "worker" in sys.argv:
    OPENED, CALLS, PLACE = [], [], os.environ["STARTUP_COUNTS"]

    def _hook(event, args):
        if event == "open" and isinstance(args[0], (str, bytes, os.PathLike)):
            OPENED.append(os.fsdecode(args[0]))

    sys.addaudithook(_hook)
    import torch.distributed as dist
    import megads.train.loop as loop
    import megads.train.worker

    def _counted(name):
        plain = getattr(dist, name)

        def call(*args, **options):
            group = options.get("group")
            tensors = [each for each in args if hasattr(each, "element_size")]
            largest = max((each.numel() * each.element_size() for each in tensors), default=0)
            CALLS.append([name, dist.get_world_size(group), largest])
            return plain(*args, **options)

        setattr(dist, name, call)

    for name in ("all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "barrier",
                 "broadcast", "gather", "monitored_barrier", "reduce", "reduce_scatter_tensor", "scatter"):
        _counted(name)
    step = loop.Loop.step

    def _first(self, batches):
        if PLACE:
            sockets = sum("socket:" in os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")
                          if os.path.islink(f"/proc/self/fd/{each}"))
            io = dict(line.split(": ") for line in open("/proc/self/io").read().split("\\n") if line)
            found = {"opened": OPENED, "calls": CALLS, "sockets": sockets, "bytes": int(io["rchar"]),
                     "threads": len(os.listdir("/proc/self/task"))}
            with open(f"{PLACE}/{self.training.groups.rank}.json", "w") as file:
                json.dump(found, file)
        loop.Loop.step = step
        step(self, batches)

    loop.Loop.step = _first
"""
SMALL = {
    **{"MACHINE": "cpu", "HIDDEN": "64", "HEADS": "4", "NUM_KV_HEAD": "4", "FFN_HIDDEN_SIZE": "128", "NLAYERS": "1"},
    **{"SEQ": "32", "MICRO_BATCH": "1", "GRAD_ACC_STEPS": "1", "TRAIN_ITERS": "1", "EVAL_INTERVAL": "0"},
    **{"DTYPE": "fp32", "DEMO_VOCAB_SIZE": "512", "DEMO_BYTES": "300000", "OMP_NUM_THREADS": "1"},
    **{"SAVE_INTERVAL": "0", "LAUNCH_WITH": "local", "FORCE": "1"},
}


def measure(ranks: int, folder: Path, *, forked: bool = True, **settings: str) -> list[dict[str, Any]]:
    """Run one step on so many ranks and return what each counted, by rank.

    Raises:
        RuntimeError: the run failed.
    """
    run, counts, planted = folder / f"run{ranks}", folder / f"counts{ranks}", folder / "planted"
    for each in (counts, planted):
        each.mkdir(exist_ok=True)
    (planted / "sitecustomize.py").write_text(PROBE)
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    env |= {**SMALL, "PYTHONPATH": f"{planted}:{ROOT}", "DATA_CACHE_PATH": str(folder / "cache"), "RUN_DIR": str(run)}
    env |= {"NGPU_PER_HOST": str(ranks), "STARTUP_COUNTS": str(counts), **settings}
    if forked:
        sys.path.insert(0, str(ROOT))
        from tests.forks.popen import Popen
    else:
        Popen = subprocess.Popen  # type: ignore[assignment]
    words = [sys.executable, "-m", "megads", "train", "--preset", "7B"]
    process = Popen(words, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = process.communicate(timeout=900)[0]
    if process.returncode:
        raise RuntimeError(f"{ranks} ranks ended with {process.returncode}:\n{output[-3000:]}")
    return [json.loads((counts / f"{rank}.json").read_text()) for rank in range(ranks)]


def kinds(opened: list[str], folder: Path) -> dict[str, int]:
    """Return how many files were opened of the run folder, the data, and elsewhere but in /proc, /sys and /dev."""
    found = {"run": 0, "data": 0, "other": 0}
    for path in opened:
        if path.startswith(str(folder / "run")):
            found["run"] += 1
        elif path.startswith(str(folder / "cache")):
            found["data"] += 1
        elif not path.startswith(("/proc", "/sys", "/dev")):
            found["other"] += 1
    return found


def world_calls(counted: dict[str, Any], ranks: int) -> list[tuple[str, int]]:
    """Return the collectives of all ranks before the first step: name and bytes of the largest tensor."""
    return [(name, num_bytes) for name, size, num_bytes in counted["calls"] if size == ranks]


def row(found: list[dict[str, Any]], folder: Path) -> dict[str, float]:
    """Return the medians of the ranks that are not the first, and what the first has."""
    others = found[1:] or found
    opened = [kinds(each["opened"], folder) for each in others]
    calls = [world_calls(each, len(found)) for each in others]
    gathers = [sum(size for name, size in each if "gather" in name) for each in calls]
    columns = {
        **{f"{name} files": [each[name] for each in opened] for name in ("run", "data", "other")},
        "KB read": [each["bytes"] / 1e3 for each in others],
        "sockets": [each["sockets"] for each in others],
        "threads": [each["threads"] for each in others],
        "world calls": [len(each) for each in calls],
        "gathered bytes": gathers,
    }
    medians = {name: statistics.median(values) for name, values in columns.items()}
    return {**medians, "sockets of rank 0": found[0]["sockets"]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--model", type=int, default=12288)
    parser.add_argument("--interpreters", action="store_true", help="a new interpreter for every rank")
    given = parser.parse_args()
    os.nice(10)
    rows: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for ranks in given.ranks:
            found = measure(ranks, folder, forked=not given.interpreters)
            rows[ranks] = row(found, folder)
            if ranks == given.ranks[-1]:
                calls = world_calls(found[1], ranks)
    names = list(next(iter(rows.values())))
    print(f"{'ranks':>18} " + " ".join(f"{ranks:>9}" for ranks in rows) + f" {given.model:>11}")
    for name in names:
        values = [rows[ranks][name] for ranks in rows]
        print(
            f"{name:>18} " + " ".join(f"{value:9.0f}" for value in values) + f" {fitted(rows, name, given.model):11.0f}"
        )
    print("collectives of all ranks before step 1: " + ", ".join(f"{name} {size} B" for name, size in calls))


def fitted(rows: dict[int, dict[str, float]], name: str, ranks: int) -> float:
    """Return what the first and the last measurement give for ``ranks``.

    A line over the logarithm of the ranks, as messages travel along trees; over the ranks for rank 0 and for gathers.
    """
    few, many = min(rows), max(rows)
    if few == many:
        return rows[many][name]
    x = float if name.startswith(("sockets of", "gathered")) else math.log2
    slope = (rows[many][name] - rows[few][name]) / (x(many) - x(few))
    return rows[many][name] + slope * (x(ranks) - x(many))


if __name__ == "__main__":
    main()
