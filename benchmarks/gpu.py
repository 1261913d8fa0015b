"""Speed and memory of the 7B model's layers on one accelerator, through the real command.

    python benchmarks/gpu.py            # 7B, 10 layers, bf16: ZeRO 0 and 1 x recomputation; under 9 minutes
    python benchmarks/gpu.py --tiny     # the same runs on a model that any CPU trains, to try the script

Prints one line a run: tokens/s and TFLOP/s a device (median of the steps after the first), MFU and peak
memory. Every run trains the same samples from the same weights, so the last losses must agree; the script
ends with exit code 1 if they do not, or if a run fails.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECOMPUTE = ("none", "selective", "full")
STEPS = 8
BIG = {"MACHINE": "generic", "MODEL_ARCH": "7B", "NLAYERS": "10", "SEQ": "4096", "MICRO_BATCH": "4", "DTYPE": "bf16"}
TINY = {"MACHINE": "cpu", "MODEL_ARCH": "tiny", "NLAYERS": "2", "SEQ": "64", "DTYPE": "fp32", "DEMO_BYTES": "300000"}
TOLERANCE = {"bf16": 2e-2, "fp32": 1e-5}
"""Between the last losses of two runs: recomputation changes no bit, ZeRO 1 only the order of sums."""


def train(folder: Path, settings: dict[str, str]) -> list[dict[str, float]]:
    """Run one training and return its logged steps.

    Raises:
        SystemExit: the run failed; what it printed is shown.
    """
    common = {
        "NGPU_PER_HOST": "1",
        "TRAIN_ITERS": str(STEPS),
        "EVAL_ITERS": "0",
        "SAVE_INTERVAL": "0",
        "DATA_CACHE_PATH": str(folder / "cache"),
        "RUN_DIR": str(folder / "-".join(settings.values())),
    }
    kept = {name: value for name, value in os.environ.items() if name.isupper() and name not in settings}
    env = {**kept, "PYTHONPATH": str(ROOT), **common, **settings}
    done = subprocess.run(
        [sys.executable, "-m", "megads", "train"], cwd=folder, env=env, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{settings}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    lines = (Path(common["RUN_DIR"]) / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "lm_loss" in row]


def main() -> int:
    """Run the table and return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tiny", action="store_true", help="a model that any CPU trains")
    shape = TINY if arguments.parse_args().tiny else BIG
    sys.stdout.write(f"{' '.join(f'{name}={value}' for name, value in shape.items())}, {STEPS} steps\n")
    sys.stdout.write("ZeRO recompute   tokens/s  TFLOP/s    MFU  memory GiB   loss\n")
    losses = []
    with tempfile.TemporaryDirectory(prefix="megads-gpu-") as name:
        for zero, recompute in itertools.product(("0", "1"), RECOMPUTE):
            rows = train(Path(name), {**shape, "ZERO_STAGE": zero, "RECOMPUTE": recompute})
            middle = {
                key: statistics.median(row[key] or 0 for row in rows[1:])
                for key in ("tokens_per_s_per_device", "tflops_per_device", "mfu")
            }
            losses.append(rows[-1]["lm_loss"])
            sys.stdout.write(
                f"{zero:4} {recompute:10} {middle['tokens_per_s_per_device']:9.0f} {middle['tflops_per_device']:8.1f} "
                f"{middle['mfu']:6.3f} {max(row['memory_bytes'] for row in rows) / 2**30:11.2f} {losses[-1]:8.4f}\n"
            )
            sys.stdout.flush()
    if max(losses) - min(losses) > TOLERANCE[shape["DTYPE"]]:
        sys.stdout.write(f"the losses differ by {max(losses) - min(losses):.2g}: the runs did not compute the same\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
