"""The processes of ``benchmarks/train_cpu.py``: a rank of a contestant, which runs steps as it is asked to.

It reads a number of steps from its input and answers with the seconds and the processor seconds they took.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

LAYERS, WIDTH, HEADS, KV_HEADS, FFN, SEQ, VOCAB = 6, 256, 8, 4, 704, 256, 8192
MICRO_BATCH, MICRO_BATCHES = 2, 2
RATE, DECAY, CLIP = 1e-4, 0.1, 1.0
SETTINGS = {
    "model.num_layers": str(LAYERS),
    "model.hidden_size": str(WIDTH),
    "model.num_heads": str(HEADS),
    "model.num_kv_heads": str(KV_HEADS),
    "model.ffn_hidden_size": str(FFN),
    "model.seq_length": str(SEQ),
    "model.vocab_size": str(VOCAB),
    "train.micro_batch": str(MICRO_BATCH),
    "train.grad_acc_steps": str(MICRO_BATCHES),
    "train.train_iters": "100000",
    "train.dtype": "fp32",
    "optim.lr": str(RATE),
    "optim.weight_decay": str(DECAY),
    "optim.clip_grad": str(CLIP),
    "parallel.zero_stage": "1",
    "data.tokenizer_type": "NullTokenizer",
    "log.log_interval": "10",
}
LISTING = "list.txt"
Step = Callable[[], None]


def hugging_face(*, fused: bool = False, ddp: bool = False) -> Step:
    """Return the step of a loop around LlamaForCausalLM with AdamW and clipping."""
    import torch
    from torch import nn
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=SEQ,
        use_cache=False,
        attn_implementation="sdpa",
    )
    torch.manual_seed(1234)
    model: nn.Module = LlamaForCausalLM(config)
    if ddp:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=fused or None)
    batches = tokens()

    def step() -> None:
        for number in range(MICRO_BATCHES):
            rows = next(batches)
            last = number + 1 == MICRO_BATCHES
            with model.no_sync() if ddp and not last else nullcontext():  # type: ignore[operator]
                (model(input_ids=rows[:, :-1], labels=rows[:, :-1]).loss / MICRO_BATCHES).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def bound() -> Step:
    """Return the step of a loop written by hand: fused products and optimizer, the whole model compiled."""
    import torch
    from torch import nn
    from train_cpu_bound import FusedLlama

    torch.manual_seed(1234)
    model = FusedLlama(LAYERS, WIDTH, HEADS, KV_HEADS, FFN, SEQ, VOCAB)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    compiled = torch.compile(model, dynamic=False)
    batches = tokens()

    def step() -> None:
        for _ in range(MICRO_BATCHES):
            rows = next(batches)
            (compiled(rows[:, :-1], rows[:, 1:]) / MICRO_BATCHES).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def tokens() -> Iterator:
    """Yield batches that were made before."""
    import torch

    generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
    made = [torch.randint(0, VOCAB, (MICRO_BATCH, SEQ + 1), generator=generator) for _ in range(16)]
    while True:
        yield from made


def ours(folder: Path, env: dict[str, str]) -> Step:
    """Return the step of the whole program."""
    from megads.cluster.ranks import find_ranks
    from megads.config.derive import derive
    from megads.config.sources.resolve import resolve
    from megads.monitor.log import LOG
    from megads.monitor.metrics import MetricsFile
    from megads.train.fault.stop import StopRequest
    from megads.train.loop import Loop
    from megads.train.setup import set_up

    LOG.addHandler(logging.NullHandler())
    ranks = int(os.environ["WORLD_SIZE"])
    overrides = SETTINGS | {"data.file_list": str(folder / LISTING)}
    asked = resolve(None, env=env, overrides=overrides, machine="cpu", root=Path(__file__).parents[1])
    run = derive(asked, num_hosts=1, ranks_per_host=ranks, vocab_size=VOCAB).run
    place = folder / "-".join(["ours", *env.values(), *env])
    place.mkdir(exist_ok=True)
    training = set_up(run, place, find_ranks(os.environ), os.environ)
    metrics = MetricsFile(place / "metrics.jsonl") if training.groups.rank == 0 else None
    loop = Loop(training, StopRequest(place, training.groups, training.device, in_place=False), metrics)
    batches = training.batches("train")
    loop.remaining.start()
    return lambda: loop.step(batches)


def make_corpus(folder: Path) -> None:
    """Write tokens for ours, noise."""
    import numpy as np

    from megads.data.formats.writer import IndexedWriter

    writer = IndexedWriter(folder / "tokens", np.dtype(np.uint16))
    rng = np.random.default_rng(0)
    for _ in range(64):
        writer.add_document(rng.integers(0, VOCAB, 20_000).astype(np.uint16))
    writer.finalize()
    (folder / LISTING).write_text(f"1.0 {folder / 'tokens'} noise\n")


PEERS: dict[str, Callable[[], Step]] = {
    "hf": hugging_face,
    "hf_fused": lambda: hugging_face(fused=True),
    "bound": bound,
    "ddp": lambda: hugging_face(fused=True, ddp=True),
}


def main() -> None:
    """Serve steps: ``KIND FOLDER CORE [NAME=VALUE ...]``."""
    kind, folder, core, *settings = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    os.sched_setaffinity(0, {int(core)})
    import torch

    torch.set_num_threads(1)
    env = dict(each.split("=", 1) for each in settings)
    step = ours(Path(folder), env) if kind == "ours" else PEERS[kind]()
    for line in sys.stdin:
        began, busy = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            step()
        print(json.dumps([time.perf_counter() - began, time.process_time() - busy]), file=answers, flush=True)


if __name__ == "__main__":
    main()
