"""Loss in chunks and MLP in tiles against the plain path, forward and backward on one core of this CPU.

::

    python -m benchmarks.long_context            # a minute, 3 GB of memory
    python -m benchmarks.long_context --quick    # seconds; its figures say little

Every form runs in a process of its own; rounds go over all forms in turns. Reported: the median of the seconds of a
forward and a backward pass, and what the peak of the resident memory is above that before the first pass.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.models.layers import Context, GatedMLP
from megads.parallel.linear_loss import LinearLoss
from megads.parallel.loss import vocab_parallel_cross_entropy
from megads.parallel.recompute import Recompute


@dataclass(frozen=True)
class Size:
    """What is computed."""

    tokens: int
    width: int
    inner: int
    vocab: int
    rounds: int
    chunks: tuple[int, ...]
    tiles: tuple[int, ...]


FULL = Size(4096, 512, 1408, 32_000, 5, (256, 1024, 4096), (4, 16))
QUICK = Size(64, 16, 32, 128, 1, (16,), (4,))

Pass = Callable[[], None]


def loss_pass(size: Size, chunk: int) -> Pass:
    """Return a pass of output layer and loss; ``chunk`` 0: the logits of all tokens."""
    x, weight = _filled(1, size.tokens, size.width), nn.Parameter(_filled(size.vocab, size.width) * 0.02)
    labels = torch.randint(0, size.vocab, (1, size.tokens))

    def once() -> None:
        states = x.detach().requires_grad_()
        if chunk:
            total = LinearLoss(None, size.vocab, chunk).total(states, weight, None, labels)
        else:
            total = vocab_parallel_cross_entropy(states @ weight.t(), labels, None, size.vocab).sum()
        (total / size.tokens).backward()
        weight.grad = None

    return once


def mlp_pass(size: Size, tiles: int) -> Pass:
    """Return a pass of a SwiGLU MLP."""
    from megads.families.spec import Parameter

    layer = {
        "mlp.gate_up.weight": Parameter(
            "mlp.gate_up.weight", (2 * size.inner, size.width), "matrix", 0, (size.inner,) * 2
        ),
        "mlp.down.weight": Parameter("mlp.down.weight", (size.width, size.inner), "matrix", 1, (size.inner,)),
    }
    mlp = GatedMLP(layer, Context(Groups(Grid(), 0), Recompute(mlp_tiles=tiles)))
    for parameter in mlp.parameters():
        nn.init.normal_(parameter, std=0.02)
    x = _filled(1, size.tokens, size.width)

    def once() -> None:
        mlp(x.detach().requires_grad_()).sum().backward()
        mlp.zero_grad()

    return once


def _filled(*shape: int) -> Tensor:
    return torch.randn(*shape)


@dataclass(frozen=True)
class Result:
    """Of one form."""

    form: str
    seconds: float  # median
    peak_mib: float  # above what the process had before


def _serve(make: Callable[[Size, int], Pass], size: Size, number: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    once = make(size, number)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while pipe.recv():
        start = time.perf_counter()
        once()
        pipe.send((time.perf_counter() - start, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024))


def measure(size: Size) -> list[Result]:
    """Return the results of all forms; rounds go over them in turns."""
    forms: list[tuple[str, Callable[[Size, int], Pass], int]] = [("loss, all logits", loss_pass, 0)]
    forms += [(f"loss, chunks of {chunk}", loss_pass, chunk) for chunk in size.chunks]
    forms += [("MLP, all tokens", mlp_pass, 1), *((f"MLP, {tiles} tiles", mlp_pass, tiles) for tiles in size.tiles)]
    context, served = multiprocessing.get_context("fork"), []
    for name, make, number in forms:
        mine, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(make, size, number, theirs), daemon=True)
        process.start()
        served.append((name, mine, process, []))
    for _ in range(size.rounds + 1):  # the first of each warms up
        for _, pipe, _, times in served:
            pipe.send(True)
            times.append(pipe.recv())
    for _, pipe, process, _ in served:
        pipe.send(False)
        process.join()
    return [
        Result(name, statistics.median(seconds for seconds, _ in times[1:]), max(peak for _, peak in times))
        for name, _, _, times in served
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    given = parser.parse_args()
    results = measure(QUICK if given.quick else FULL)
    if given.json:
        print(json.dumps([asdict(each) for each in results]))
        return
    for each in results:
        print(f"{each.form:24} {each.seconds:8.3f} s   peak +{each.peak_mib:7.0f} MiB")


if __name__ == "__main__":
    main()
