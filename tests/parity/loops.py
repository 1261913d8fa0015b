"""The real loop, loader, checkpoints and engine on real groups; losses may be made wrong on the way."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.engine.plain import let_fp16_run, working_weights
from tests.parity.layouts import VOCAB, Layout
from tests.ranks import groups_of

END_TOKEN = 7
SETTINGS = {
    "model.num_layers": "2",
    "model.hidden_dropout": "0.1",
    "model.attention_dropout": "0.1",
    "model.vocab_size": str(VOCAB),
    "train.micro_batch": "1",
    "train.train_iters": "12",
    "train.eval_interval": "0",
    "train.eval_at_start": "false",
    "optim.lr": "0.01",
    "optim.lr_decay_iters": "12",
    "data.num_workers": "2",
    "data.tokenizer_type": "NullTokenizer",
    "checkpoint.save_interval": "4",
    "stability.nonfinite_keep": "nothing",  # another call of train_step would shift the script
}


class Scripted:
    """An engine whose losses are what ``losses`` makes of them, for whoever decides by them, and all else as it is.

    Args:
        engine: a real one.
        losses: number of the call of ``train_step``, from 1 -> what the loss becomes.
    """

    def __init__(self, engine: Any, losses: Mapping[int, Callable[[float], float]]):
        self._real, self.losses = engine, losses
        self.calls = 0
        self.seen: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def train_step(self, batches: Any, lr: float, *, accepts: Any = None, **rates: Any) -> Any:
        self.calls += 1
        change = self.losses.get(self.calls, lambda loss: loss)
        asked: list[float] = []

        def ask(loss: float) -> bool:
            asked.append(loss)
            return bool(accepts(change(loss)))

        result = self._real.train_step(batches, lr, accepts=None if accepts is None else ask, **rates)
        assert asked in ([], [float(result.loss)])
        self.seen.append((float(result.loss), lr, result.loss_scale, result.skipped))
        return replace(result, loss=result.loss.new_tensor(change(float(result.loss))))


def loop_of(
    layout: Layout,
    folder: Path,
    losses: Mapping[int, Callable[[float], float]] | None = None,
    device: str = "cpu",
    **changes: str,
) -> Any:
    """Return this rank's loop, gone on from the newest checkpoint in ``folder``. Collective.

    Another ``device`` than the CPU is that of :mod:`tests.simgpu`.
    """
    let_fp16_run()
    import torch
    import torch.distributed as dist

    from megads.data.datasets import build_splits
    from megads.data.sources.file_list import Shard
    from megads.device.vendor import vendor
    from megads.engine.build import make_engine
    from megads.monitor.metrics import MetricsFile
    from megads.train.fault.stop import Deadline, StopRequest
    from megads.train.loop import Loop
    from megads.train.resume import resume
    from megads.train.setup import Training
    from tests.data.factory import write_dataset

    groups, device = groups_of(**layout.degrees), torch.device(device)
    data = folder.parent / "data"
    if groups.rank == 0 and not data.exists():
        data.mkdir(parents=True)
        write_dataset(data, [50] * 60)
    if dist.is_initialized():
        dist.barrier()
    run = layout.run(**{**SETTINGS, "data.cache_dir": str(folder.parent / "cache"), **changes})
    splits = build_splits(run, [Shard(1.0, str(data / "data"), "a")])
    needs_end = run.data.eod_mask_loss or run.data.reset_position_ids or run.data.reset_attention_mask
    engine = Scripted(make_engine(run, groups, device, END_TOKEN if needs_end else None), losses or {})
    row = vendor({"MEGADS_DEVICE": "cpu"} if device.type == "cpu" else {})
    training = Training(run, folder, groups, row, device, engine, splits)
    resume(training)
    stop = StopRequest(folder, groups, device, in_place=False, deadline=Deadline(0.0, 1.0))
    metrics = MetricsFile(folder / "metrics.jsonl", training.progress.iteration) if groups.rank == 0 else None
    return Loop(training, stop, metrics)


def state_of(loop: Any) -> str:
    """Return a digest of every number on this rank that decides what comes: weights, moments, counters. Collective."""
    import torch

    training = loop.training
    tensors = [tensor for piece in training.engine.state.owned_shards() for tensor in piece.tensors.values()]
    tensors += working_weights(training.engine)
    digest = hashlib.blake2b(repr(sorted(training.engine.state.scalars().items())).encode())
    for tensor in tensors:
        digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def spike(loss: float) -> float:
    return 100 * loss


def no_number(loss: float) -> float:
    return math.nan
