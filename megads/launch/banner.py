"""What a run will do, on one screen, before it starts."""

from __future__ import annotations

from pathlib import Path

from megads.config.derive import padded_vocab_size
from megads.config.memory import Memory, count_parameters
from megads.config.schema import RunConfig
from megads.launch.scheduler import Allocation
from megads.monitor.text import count

GIB = 1024**3


def banner(run: RunConfig, allocation: Allocation, memory: Memory, available: int, folder: Path) -> str:
    """Return the lines that say what will run. ``run`` is derived; ``available`` in bytes, 0 if not known."""
    model, train, parallel = run.model, run.train, run.parallel
    data = Path(run.data.file_list).name if run.data.file_list else "demo corpus: this Python's standard library"
    hosts = f"{len(allocation.hosts)} host" + ("s" if len(allocation.hosts) > 1 else "")
    total = memory.total * allocation.ranks_per_host
    fits = f", {total / GIB:.2f} GiB a host of {available / GIB:.1f} GiB free" if available else ""
    rows = [
        ("run", f"{run.name} in {folder}, machine {run.machine}"),
        (
            "layout",
            f"{allocation.world_size} ranks on {hosts}: TP={parallel.tensor} PP={parallel.pipeline} "
            f"SP={parallel.sequence} DP={parallel.data} ZeRO={parallel.zero_stage}",
        ),
        (
            "model",
            f"{model.family}, {model.num_layers} layers, hidden {model.hidden_size}, heads {model.num_heads}"
            f" (kv {model.num_kv_heads}), ffn {model.ffn_hidden_size}, vocabulary {model.vocab_size}"
            f" padded to {padded_vocab_size(model)}: {count(count_parameters(model))} parameters, {train.dtype}",
        ),
        (
            "batch",
            f"{train.global_batch} samples = micro {train.micro_batch} x accumulation {train.grad_acc_steps}"
            f" x DP {parallel.data}; {model.seq_length} tokens a sample,"
            f" {count(train.global_batch * model.seq_length)} tokens a step",
        ),
        (
            "train",
            f"{train.train_iters} iterations, {count(train.train_iters * train.global_batch * model.seq_length)}"
            f" tokens; {run.optim.optimizer}, lr {run.optim.lr:g} {run.optim.lr_decay_style}",
        ),
        ("data", data),
        (
            "memory",
            f"about {memory.total / GIB:.2f} GiB a rank (weights {memory.weights / GIB:.2f}, gradients"
            f" {memory.gradients / GIB:.2f}, optimizer {memory.optimizer / GIB:.2f}, activations"
            f" {(memory.activations + memory.logits) / GIB:.2f}, program {memory.program / GIB:.2f}){fits}",
        ),
    ]
    return "\n".join(f"{name:8} {text}" for name, text in rows)
