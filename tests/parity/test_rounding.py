"""What rounding makes of the losses, per optimizer: between layouts no more than between micro-batch sizes on one rank.

docs/optimizers.md has the table that ``python -m tests.parity.test_rounding`` prints.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from tests.parity.layouts import Layout, engine_of, train_on
from tests.ranks import close_pools, run_ranks

STEPS = 20
# Matrices of 4096 numbers or more: bitsandbytes keeps the moments of smaller ones in 32 bits.
SIZES = {"model.hidden_size": "64", "model.head_dim": "8", "model.ffn_hidden_size": "192"}
SMOOTH, AMPLIFYING = ("adamw", "lamb", "sgd"), ("muon", "soap", "adam8bit")
RUNS = {
    "one": Layout(),
    "micro-batch": Layout(more={"train.micro_batch": "1"}),
    "dp2": Layout(dp=2),
    "tp2": Layout(tp=2),
}


def _losses(layout: Layout, optimizer: str, path: Path) -> None:
    import torch.distributed as dist

    changes = {**SIZES, "optim.optimizer": optimizer, "train.train_iters": str(STEPS)}
    results = train_on(*engine_of(layout, **changes), range(STEPS), lr=lambda step: 1e-3)
    if dist.get_rank() == 0:
        path.write_text(json.dumps([float(result.loss) for result in results]))


def differences(optimizer: str, folder: Path) -> dict[str, float]:
    """Return the largest relative difference of a loss from that of one rank, for each other run."""
    losses = {}
    for name, layout in RUNS.items():
        path = folder / f"{optimizer}-{name}.json"
        run_ranks(layout.ranks, _losses, layout, optimizer, path, timeout_s=120)
        losses[name] = json.loads(path.read_text())
    one = losses.pop("one")
    return {name: max(abs(a - b) / b for a, b in zip(each, one, strict=True)) for name, each in losses.items()}


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("optimizer", AMPLIFYING)
def test_layouts_differ_by_rounding_as_micro_batch_sizes_do(optimizer, tmp_path):
    found = differences(optimizer, tmp_path)
    for name in ("dp2", "tp2"):
        assert found[name] < 30 * found["micro-batch"], found
        assert found[name] < 1e-2, found


if __name__ == "__main__":
    print("| OPT |" + "".join(f" {name} |" for name in RUNS if name != "one"))  # noqa: T201
    with tempfile.TemporaryDirectory() as name:
        for each in (*SMOOTH, *AMPLIFYING):
            numbers = "".join(f" {value:.0e} |" for value in differences(each, Path(name)).values())
            print(f"| `{each}` |{numbers}", flush=True)  # noqa: T201
    close_pools()
