"""How much of a step is the model: megads against a bare PyTorch loop, one rank, same layers and batch.

    python benchmarks/framework_overhead.py [--rounds 12] [--steps 4] [--zero-stage 0]

Both train the same Llama (10 layers, hidden 128, sequence 256, micro-batch 8, accumulation 2, fp32)
on the same tokens in one process. Rounds alternate, so that a noisy neighbour hits both alike. The
bare loop is what a PyTorch user writes by hand: plain modules, AdamW, clipping, no launcher, no
engine, no log. The megads side is the whole program's step: sampling, schedule, engine, log line,
metrics row. Prints the ratio of tokens per second, its median and spread.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megads.cluster.ranks import find_ranks
from megads.config.derive import derive
from megads.config.schema import ModelConfig, RunConfig
from megads.config.sources.resolve import resolve
from megads.data.formats.writer import IndexedWriter
from megads.monitor.log import LOG
from megads.monitor.metrics import MetricsFile
from megads.train.fault.stop import StopRequest
from megads.train.loop import Loop
from megads.train.setup import set_up

ROOT = Path(__file__).parents[1]
SETTINGS = {
    "model.num_layers": "10",
    "model.hidden_size": "128",
    "model.num_heads": "4",
    "model.num_kv_heads": "4",
    "model.ffn_hidden_size": "384",
    "model.seq_length": "256",
    "train.micro_batch": "8",
    "train.grad_acc_steps": "2",
    "train.global_batch": "16",
    "train.train_iters": "10000",
    "train.dtype": "fp32",
    "data.tokenizer_type": "NullTokenizer",
    "model.vocab_size": "2048",
}


class BareNorm(nn.Module):
    def __init__(self, model: ModelConfig):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(model.hidden_size)), model.norm_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class BareBlock(nn.Module):
    def __init__(self, model: ModelConfig):
        super().__init__()
        width, inner = model.hidden_size, model.ffn_hidden_size
        self.heads = model.num_heads
        self.norm1, self.norm2 = BareNorm(model), BareNorm(model)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate_up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class BareLlama(nn.Module):
    def __init__(self, model: ModelConfig):
        super().__init__()
        self.embedding = nn.Embedding(model.vocab_size, model.hidden_size)
        self.blocks = nn.ModuleList(BareBlock(model) for _ in range(model.num_layers))
        self.norm, self.head = BareNorm(model), nn.Linear(model.hidden_size, model.vocab_size, bias=False)
        frequency = model.rope_theta ** -(torch.arange(0, model.head_dim, 2) / model.head_dim)
        angle = torch.outer(torch.arange(model.seq_length), frequency).repeat(1, 2)
        self.cos, self.sin = angle.cos(), angle.sin()

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def bare_step(run: RunConfig, batch: Callable[[], Tensor]) -> Callable[[], None]:
    model = BareLlama(run.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.optim.lr, weight_decay=run.optim.weight_decay, fused=True)

    def step() -> None:
        for _ in range(run.train.grad_acc_steps):
            tokens = batch()
            (model(tokens[:, :-1], tokens[:, 1:]) / run.train.grad_acc_steps).backward()
        nn.utils.clip_grad_norm_(model.parameters(), run.optim.clip_grad)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def write_tokens(folder: Path, vocab: int) -> Path:
    writer = IndexedWriter(folder / "tokens", np.dtype(np.uint16))
    rng = np.random.default_rng(0)
    for _ in range(64):
        writer.add_document(rng.integers(0, vocab, 20_000).astype(np.uint16))
    writer.finalize()
    listing = folder / "list.txt"
    listing.write_text(f"1.0 {folder / 'tokens'} noise\n")
    return listing


def megads_step(run: RunConfig, folder: Path) -> tuple[Callable[[], None], Callable[[], Tensor]]:
    training = set_up(run, folder, find_ranks({}), {})
    stop = StopRequest(folder, training.groups, training.device, in_place=False)
    loop = Loop(training, stop, MetricsFile(folder / "metrics.jsonl"))
    batches = training.batches("train")
    loop.remaining.start()

    def step() -> None:
        loop.step(batches)

    return step, lambda: next(batches)


def seconds(step: Callable[[], None], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - started) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--zero-stage", default="0", choices=("0", "1"))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    LOG.addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        overrides = SETTINGS | {
            "data.file_list": str(write_tokens(folder, 2048)),
            "parallel.zero_stage": options.zero_stage,
        }
        asked = resolve(None, env={}, overrides=overrides, machine="cpu", root=ROOT)
        run = derive(asked, num_hosts=1, ranks_per_host=1, vocab_size=2048).run
        ours, batch = megads_step(run, folder)
        bare = bare_step(run, batch)
        seconds(ours, 2), seconds(bare, 2)
        tokens = run.train.global_batch * run.model.seq_length
        ratios = []
        for number in range(options.rounds):
            order = (bare, ours) if number % 2 else (ours, bare)
            took = {step: seconds(step, options.steps) for step in order}
            ratios.append(took[bare] / took[ours])
            print(
                f"round {number + 1:2d}: megads {tokens / took[ours]:8.0f} tok/s, "
                f"bare {tokens / took[bare]:8.0f} tok/s, ratio {ratios[-1]:.3f}"
            )
    print(f"ratio megads / bare: median {statistics.median(ratios):.3f}, {min(ratios):.3f} .. {max(ratios):.3f}")


if __name__ == "__main__":
    main()
