"""Training on gradients that a script gives: the same bits in every layout, so that optimizers compare exactly."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.parity.layouts import Layout, batches, engine_of

RATE = 1e-2
EXACT = {"optim.clip_grad": "0", "train.dtype": "fp32"}
SMALL = {
    "model.num_layers": "2",
    "model.hidden_size": "16",
    "model.num_heads": "4",
    "model.num_kv_heads": "2",
    "model.head_dim": "4",
    "model.ffn_hidden_size": "24",
    "model.seq_length": "8",
}
"""Matrices wide (q, k, v; gate and up), tall (down) and square, in parts of unequal size."""


def gradient(name: str, shape: Any, step: int) -> Any:
    """Return the whole gradient of a parameter at a step: about as large as real ones, exact in bf16 and in sums."""
    return _gradient(name, tuple(shape), step).clone()


@cache
def _gradient(name: str, shape: tuple[int, ...], step: int) -> Any:
    import hashlib

    import torch

    seed = int.from_bytes(hashlib.blake2b(f"{name}/{step}".encode(), digest_size=6).digest(), "little")
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return (drawn * 64).round().clamp(-256, 256) / 4096


def rate(step: int) -> float:
    return RATE * (1 + step % 5)


def reference(kind: str, steps: int, *, in_use: bool = False, **changes: str) -> dict[str, Any]:
    """Return the float32 weights after ``steps`` of the library's own class on one rank, by name.

    Args:
        kind: of the model.
        steps: to take.
        in_use: a schedule-free optimizer's weights for use, not those at which gradients are taken.
        changes: settings.
    """
    return {name: weight.detach() for name, weight in _trained(kind, steps, in_use, **changes).named_parameters()}


@cache
def _trained(kind: str, steps: int, in_use: bool, **changes: str) -> Any:
    """Return the model; not to be changed: it is kept."""
    import torch

    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.models.build import build_model
    from tests.engine.plain import plain_optimizer

    run = Layout(kind).run(**{**SMALL, **EXACT, **changes})
    model = build_model(run, Groups(Grid(), 0))
    # Half-precision runs begin with what their model can hold.
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[run.train.dtype]
    for weight in model.parameters():
        weight.data = weight.data.to(dtype).float()
    optimizer = plain_optimizer(model, run)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        for name, weight in model.named_parameters():
            weight.grad = gradient(name, weight.shape, step)
        if run.optim.optimizer == "sophiag" and step % run.optim.sophia_interval == 0:
            for each in optimizer.optimizers:
                each.tokens = run.train.global_batch * run.model.seq_length
            optimizer.step()
            for each in optimizer.optimizers:
                each.tokens = 0
        optimizer.step()
        optimizer.zero_grad()
    for each in optimizer.optimizers if in_use else ():
        each.eval()
    return model


def loss_of(kind: str, steps: int, batch: Any, *, in_use: bool, **changes: str) -> float:
    """Return the mean loss on ``batch`` of what :func:`reference` has trained."""
    import torch

    with torch.no_grad():
        return float(_trained(kind, steps, in_use, **changes)(batch[:, :-1], batch[:, 1:]))


class Scripted:
    """An engine whose gradients are the script's, times :attr:`factor`; on every rank."""

    def __init__(self, layout: Layout, **changes: str):
        self.layout = layout
        self.engine, self.run, self.groups = engine_of(layout, **{**SMALL, **EXACT, **layout.more, **changes})
        self.step, self.factor = 0, 1.0
        for name, parameter in self.engine.module.named_parameters():
            parameter.register_hook(self._hook(name, parameter))

    def _hook(self, name: str, parameter: Any) -> Any:
        import torch

        from megads.engine.base import is_copy
        from megads.parallel.tensor import take_shard

        shard = getattr(parameter, "shard", None)

        def scripted(found: torch.Tensor) -> torch.Tensor:
            if is_copy(parameter):
                return torch.zeros_like(found)
            shape = list(found.shape)
            if shard is not None:
                shape[shard.dim] = sum(shard.parts)
            whole = self.factor * gradient(name, shape, self.step) / self.run.train.grad_acc_steps
            return take_shard(whole, shard, self.groups.tensor_rank, self.groups.tensor_size).to(found.dtype)

        return scripted

    def train(self, steps: int) -> None:
        """Go on until ``steps`` are done."""
        for step in range(self.step, steps):
            self.step = step
            parts = batches(self.run, step, self.groups.data_rank)
            result = self.engine.train_step(parts, rate(step))
            assert not result.skipped
        self.step = steps

    def differences(self, expected: dict[str, Any]) -> Iterator[tuple[str, float]]:
        """Yield of every parameter of this rank how far it is from ``expected``, relative to its largest number."""
        from megads.parallel.tensor import take_shard

        for state in self.engine.state.by_parameter():
            shard = getattr(state.parameter, "shard", None)
            wanted = take_shard(expected[state.name], shard, self.groups.tensor_rank, self.groups.tensor_size)
            yield state.name, float((state.tensors["weight"] - wanted).abs().max() / wanted.abs().max())
