"""The same Llama as transformers' class in a plain loop with torch.compile, in the same run: tokens/s of both."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from megads.bench.models import LEARNING_RATE, TINY, Model, make, release, settings, tokens, train
from megads.bench.results import PartResult
from megads.bench.session import DTYPES, Bench, MeasurementFailed
from megads.bench.training import CPU_MODELS, VOCAB, speeds
from megads.config.schema import RunConfig
from megads.errors import MegadsError

MODEL = Model("7B", {"model.num_layers": "4", **VOCAB}, "7B, 4 layers")
STEPS = 5


def measure(bench: Bench, result: PartResult) -> None:
    """Add a row for each of the two programs. Collective."""
    if importlib.util.find_spec("transformers") is None:
        result.status = "skipped"
        result.notes.append("transformers is not installed: pip install transformers")
        return
    model = TINY if bench.is_tiny else CPU_MODELS[0] if bench.is_cpu else MODEL
    dtype = "fp32" if bench.is_cpu else "bf16"
    run = settings(bench.root, bench.world_size, model, dtype)
    how = "aot_eager" if bench.is_tiny else "inductor"
    loops: dict[str, Callable[[], Callable[[int], float]]] = {
        "megads": lambda: _ours(bench, run),
        f"transformers, {how}": lambda: _theirs(bench, run, how),
    }
    for name, begin in loops.items():
        bench.notify(f"{model} by {name}")
        try:
            step = bench.on_all_kept(begin)
            seconds, loss = _timed(bench, step)
        except MeasurementFailed as problem:
            result.notes.append(f"{name}: {problem}")
            result.status = "partial"
            continue
        row = {"program": name, "model": str(model), "dtype": dtype, "step_s": seconds}
        result.rows.append({**row, **speeds(bench, run, seconds), "loss": loss})
        del step
        release(bench)
    if len(result.rows) == 2:
        ours, theirs = (row["tokens_per_s"] for row in result.rows)
        result.notes.append(f"megads is {ours / theirs:.2f} times as fast")
    if bench.is_tiny:
        result.notes.append("tiny: without inductor's code; the times say nothing about a real model")


def _timed(bench: Bench, step: Callable[[int], float]) -> tuple[float, float]:
    """Return the seconds of the median step on the slowest rank, and the last loss. Collective."""
    times: list[float] = []
    losses: list[float] = []

    def once(number: int) -> None:
        started = time.perf_counter()
        losses.append(step(number))
        bench.vendor.synchronize(bench.device)
        times.append(time.perf_counter() - started)

    for number in range(STEPS + 2):
        bench.on_all(partial(once, number))
        if number >= 2 and not bench.goes_on(times[-1]):
            break
    return max(bench.on_all(lambda: statistics.median(times[2:]))), losses[-1]


def _ours(bench: Bench, run: RunConfig) -> Callable[[int], float]:
    engine = make(bench, run)
    return lambda number: float(train(bench, engine, run, 1, number)[0].loss)


def _theirs(bench: Bench, run: RunConfig, how: str) -> Callable[[int], float]:
    """Return the step of a plain loop: fp32 weights, autocast, DDP where there are several ranks, fused AdamW."""
    module = llama(run).to(bench.device)
    whole: Any = module
    if bench.world_size > 1:
        ids = None if bench.is_cpu else [bench.device.index]
        whole = nn.parallel.DistributedDataParallel(module, device_ids=ids)
    compiled = torch.compile(whole, backend=how)
    optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE, fused=not bench.is_cpu)
    half = run.train.dtype != "fp32"

    def step(number: int) -> float:
        batches = tokens(run, number, bench.groups.data_rank)
        total = torch.zeros((), device=bench.device)
        for batch in batches:
            on_device = batch.to(bench.device)
            with torch.autocast(bench.device.type, DTYPES[run.train.dtype], enabled=half):
                logits = compiled(input_ids=on_device[:, :-1], use_cache=False).logits
            loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), on_device[:, 1:].flatten()) / len(batches)
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(module.parameters(), run.optim.clip_grad or 1e9)
        optimizer.step()
        optimizer.zero_grad()
        return float(total)

    return step


def llama(run: RunConfig) -> nn.Module:
    """Return transformers' class for the sizes of ``run``, with its own initial weights.

    Raises:
        MegadsError: this version of transformers does not make it.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    model = run.model
    try:
        config = LlamaConfig(
            vocab_size=model.vocab_size,
            hidden_size=model.hidden_size,
            intermediate_size=model.ffn_hidden_size,
            num_hidden_layers=model.num_layers,
            num_attention_heads=model.num_heads,
            num_key_value_heads=model.num_kv_heads,
            max_position_embeddings=model.seq_length,
            tie_word_embeddings=False,
        )
        torch.manual_seed(run.train.seed)
        made: nn.Module = LlamaForCausalLM._from_config(config, attn_implementation="sdpa")
    except (TypeError, ValueError, ImportError) as problem:
        raise MegadsError(f"transformers: {problem}") from None
    return made
