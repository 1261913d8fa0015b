"""Ranges of a step per layer, on request: what leaves it, its gradient, weights and update; losses of micro-batches.

In every RANGES_INTERVAL-th step modules are hooked and the loss is looked at; in all others nothing is there. Every
rank measures what it holds: its samples, its part of the sequence, its columns of the logits, its run of each weight.
Sums and maxima over all ranks are those of one rank, in every layout. What several ranks hold copies of counts as one:
tensor-parallel rank 0 measures activations that all of them have, and sums of squares of a weight are divided by how
often its elements were counted. Measuring changes no number of the step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megads.engine.optim.exchange import Slot
from megads.engine.optim.whole_parameters import Call
from megads.models.gpt import GPT
from megads.monitor.log import LOG
from megads.train.setup import Training

HEAD = "head"
"""Where the logits are; their columns of padding do not count."""

SUMS = 4  # of activations: squares of the finite, not finite, zeros, elements; of weights: see _Weights


@dataclass
class _Activations:
    """What left the layers of this rank in one step."""

    found: dict[str, Tensor] = field(default_factory=dict)  # place -> [1 + SUMS] float64, the first the largest
    losses: list[Tensor] = field(default_factory=list)  # of micro-batches, where this rank has them

    def add(self, place: str, output: Any) -> None:
        """Count what left ``place``; a layer that is computed again in the backward pass was counted."""
        tensor = next((each for each in _flat(output) if each.is_floating_point() and each.numel()), None)
        if tensor is None or torch._C._current_graph_task_id() != -1:
            return
        numbers = _numbers(tensor)
        before = self.found.get(place)
        if before is not None:
            numbers = torch.cat([torch.maximum(before[:1], numbers[:1]), before[1:] + numbers[1:]])
        self.found[place] = numbers


@dataclass
class _Weights:
    """Squares of this rank's elements of one weight; ``before`` are the elements before the update, on the host."""

    slot: Slot
    gradient: Tensor  # [] float64
    before: Tensor

    def sums(self) -> Tensor:
        """Return the squares of gradient, weight and update, and the elements, [SUMS] float64."""
        weight = self.slot.weight.detach()
        before = self.before.to(weight.device)
        count = torch.full((), weight.numel(), dtype=torch.float64, device=weight.device)
        update = _squares(weight.view(-1) - before)
        return torch.stack([self.gradient.to(weight.device), _squares(before), update, count])


class RangeCheck:
    """Measures the ranges of one run. All ranks call it in the same steps."""

    def __init__(self, training: Training):
        self.training = training
        self.interval = training.run.stability.ranges_interval
        self.activations = _Activations()
        self.weights: dict[str, _Weights] = {}
        self.calls: list[Call] = []
        self.found: Ranges | None = None  # of the last step, on rank 0, where it was measured

    @contextmanager
    def step(self, iteration: int, micro_batches: int) -> Iterator[None]:
        """Measure in the block, which is a step of so many micro-batches of a rank. Collective where it is due."""
        self.found = None
        if not self.interval or iteration % self.interval:
            yield
            return
        state: Any = self.training.engine.state
        self.activations, self.weights, self.calls = _Activations(), {}, state.calls()
        with ExitStack() as stack:
            self._hook(stack)
            stack.callback(self.training.engine.before_updates(self._before))
            yield
        self._reduce(iteration, micro_batches)
        self.activations, self.weights, self.calls = _Activations(), {}, []

    def row(self, grad_norm: float) -> dict[str, float]:
        """Return the entries of metrics.jsonl; empty where the last step was not measured."""
        if self.found is None:
            return {}
        found, self.found = self.found.scaled(grad_norm), None
        LOG.info("%s", found.line())
        return found.row()

    # On this rank

    @property
    def _chunks(self) -> Sequence[GPT]:
        engine: Any = self.training.engine
        return getattr(engine, "chunks", None) or [engine.module]

    def _hook(self, stack: ExitStack) -> None:
        for chunk in self._chunks:
            if self.training.groups.tensor_rank == 0 or chunk.context.scatter_norms:
                named = {f"layers.{index}": layer for index, layer in chunk.layers.items()}
                named |= {"embedding": chunk.embedding} if chunk.has_embedding else {}
                named |= {"final_norm": chunk.final_norm} if chunk.has_head and chunk.final_norm is not None else {}
                for place, module in named.items():
                    stack.callback(module.register_forward_hook(self._leaves(place)).remove)
            if chunk.has_head:
                stack.enter_context(_replaced(chunk, "project", self._projecting(chunk)))
                stack.enter_context(_replaced(chunk, "loss", self._losing))

    def _leaves(self, place: str) -> Callable[..., None]:
        def leave(module: Any, args: Any, output: Any) -> None:
            self.activations.add(place, output)

        return leave

    def _projecting(self, chunk: GPT) -> Callable[[Any], Any]:
        def around(real: Any) -> Any:
            def project(states: Tensor, use: Any = None) -> Tensor:
                found: Tensor = real(states, use)
                if use is None:  # else the logits of a few tokens at a time
                    first = self.training.groups.tensor_rank * found.shape[-1]
                    self.activations.add(HEAD, found[..., : max(0, chunk.config.vocab_size - first)])
                return found

            return project

        return around

    def _losing(self, real: Any) -> Any:
        def loss(*args: Any, **kwargs: Any) -> Tensor:
            found: Tensor = real(*args, **kwargs)
            self.activations.losses.append(found.detach().double())
            return found

        return loss

    @torch.no_grad()
    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # ZeRO 3 calls once for every sub-group, with that one's gradient only.
        now = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
        for call in self.calls:
            for slot in call.slots if id(call.key) in now else ():
                if slot.count:
                    before = slot.weight.detach().view(-1).to("cpu", copy=True)
                    self.weights[slot.name] = _Weights(slot, _squares(slot.gradient()), before)

    # On all ranks

    @torch.no_grad()
    def _reduce(self, iteration: int, micro_batches: int) -> None:
        t, groups = self.training, self.training.groups
        _ = t.engine.module  # waits for weights on their way
        places = self._places()
        outputs = torch.zeros(len(places), 1 + SUMS, dtype=torch.float64, device=t.device)
        for place, numbers in self.activations.found.items():
            outputs[places.index(place)] = numbers.to(t.device)
        weights = torch.zeros(len(t.parameters), SUMS, dtype=torch.float64, device=t.device)
        for at, name in enumerate(t.parameters):
            if name in self.weights:
                weights[at] = self.weights[name].sums().to(t.device)
        losses = torch.zeros(micro_batches, groups.data_size, dtype=torch.float64, device=t.device)
        if groups.tensor_rank == 0 and self.activations.losses:
            losses[:, groups.data_rank] = torch.stack(self.activations.losses[-micro_batches:]) / groups.seq_size
        largest, sums = outputs[:, 0].contiguous(), torch.cat([each.view(-1) for each in (outputs, weights, losses)])
        if groups.world is not None:
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
            dist.all_reduce(sums)
        outputs, weights, losses = (
            part.view(each.shape).cpu()
            for part, each in zip(
                sums.split([each.numel() for each in (outputs, weights, losses)]),
                (outputs, weights, losses),
                strict=True,
            )
        )
        if groups.rank == 0:
            outputs[:, 0] = largest.cpu()
            by_place = dict(zip(places, outputs.tolist(), strict=True))
            self.found = Ranges(iteration, by_place, self._by_place(weights), losses.view(-1).tolist())

    def _places(self) -> list[str]:
        """Return the places of the whole model, the same on every rank."""
        layers = [f"layers.{index}" for index in range(self._chunks[0].spec.num_layers)]
        return ["embedding", *layers, "final_norm", HEAD]

    def _by_place(self, weights: Tensor) -> dict[str, list[float]]:
        """Return the squares of gradient, weight and update of every place whose weights were updated."""
        found: dict[str, list[float]] = {}
        for (name, layout), (*squares, count) in zip(self.training.parameters.items(), weights.tolist(), strict=True):
            if count:
                copies = count / math.prod(layout.shape)
                sums = found.setdefault(place_of(name), [0.0] * len(squares))
                found[place_of(name)] = [total + each / copies for total, each in zip(sums, squares, strict=True)]
        return found


@dataclass(frozen=True)
class Ranges:
    """What was measured in one step.

    Attributes:
        outputs: place -> the largest magnitude, squares of the finite elements, elements that are not finite, zeros,
            elements.
        weights: place -> squares of gradient, weight and update.
        losses: of the step's micro-batches.
    """

    iteration: int
    outputs: dict[str, list[float]]
    weights: dict[str, list[float]]
    losses: list[float]

    def scaled(self, grad_norm: float) -> Ranges:
        """Return the same with gradients whose norm is ``grad_norm``: an optimizer gets them clipped and scaled."""
        total = sum(gradient for gradient, *_ in self.weights.values())
        factor = grad_norm**2 / total if total and math.isfinite(total) else math.nan
        weights = {place: [gradient * factor, *rest] for place, (gradient, *rest) in self.weights.items()}
        return Ranges(self.iteration, self.outputs, weights, self.losses)

    def row(self) -> dict[str, float]:
        """Return the entries of metrics.jsonl."""
        row = {"micro_batch_loss_min": min(self.losses), "micro_batch_loss_max": max(self.losses)}
        for place, (largest, squares, wrong, zeros, count) in self.outputs.items():
            if count:
                row[f"activation_max/{place}"] = largest
                row[f"activation_rms/{place}"] = math.sqrt(squares / max(1.0, count - wrong))
                row |= {f"activation_zeros/{place}": zeros / count} if zeros else {}
                row |= {f"activation_nonfinite/{place}": wrong / count} if wrong else {}
        for place, (gradient, weight, update) in self.weights.items():
            row[f"layer_grad_norm/{place}"] = math.sqrt(gradient)
            row[f"layer_weight_norm/{place}"] = math.sqrt(weight)
            row |= {f"layer_update_ratio/{place}": math.sqrt(update / weight)} if weight else {}
        return row

    def line(self) -> str:
        """Return what stands out, in words."""
        row = self.row()
        parts = [
            self._largest(row, "activation_max/", "largest activation"),
            f"logits up to {row[f'activation_max/{HEAD}']:.3g}" if f"activation_max/{HEAD}" in row else "",
            self._largest(row, "layer_grad_norm/", "largest gradient norm"),
            self._largest(row, "layer_update_ratio/", "largest update/weight"),
            f"micro-batch losses {row['micro_batch_loss_min']:.4f} to {row['micro_batch_loss_max']:.4f}",
        ]
        wrong = next((place for place, (_, _, wrong, *_) in self.outputs.items() if wrong), "")
        parts.append(f"NaN or Inf in what leaves {wrong}" if wrong else "")
        return f"ranges   step {self.iteration}: " + ", ".join(filter(None, parts))

    @staticmethod
    def _largest(row: dict[str, float], kind: str, name: str) -> str:
        found = {key: each for key, each in row.items() if key.startswith(kind) and key != f"activation_max/{HEAD}"}
        if not found:
            return ""
        key = max(found, key=lambda each: -math.inf if math.isnan(found[each]) else found[each])
        return f"{name} {found[key]:.3g} in {key.removeprefix(kind)}"


def place_of(name: str) -> str:
    """Return where a weight is: its layer, or the module that is no layer."""
    layer = re.match(r"layers\.\d+", name)
    return layer[0] if layer else name.partition(".")[0]


def _numbers(tensor: Tensor) -> Tensor:
    """Return the largest magnitude, squares of the finite elements, not finite, zeros, elements: float64."""
    size = tensor.detach().abs()
    size = size if size.dtype == torch.float64 else size.float()
    is_finite = size.isfinite()
    zeros = (size == 0).sum()
    size = size.masked_fill(~is_finite, 0.0)
    largest = size.amax()
    squares = _squares(size, largest)
    count = torch.full_like(squares, size.numel())
    return torch.stack([largest.double(), squares, (~is_finite).sum().double(), zeros.double(), count])


def _squares(tensor: Tensor, largest: Tensor | None = None) -> Tensor:
    """Return the sum of squares, [] float64, also where those of ``largest`` elements overflow float32."""
    plain = tensor.detach() if tensor.dtype == torch.float64 else tensor.detach().float()
    if largest is None:
        largest = plain.abs().amax()
    scale = largest.clamp(min=torch.finfo(plain.dtype).tiny)
    return (plain / scale).square().sum(dtype=torch.float64) * scale.double().square()


def _flat(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, list | tuple):
        for each in output:
            yield from _flat(each)


@contextmanager
def _replaced(owner: Any, name: str, around: Callable[[Any], Any]) -> Iterator[None]:
    """Have ``around(method)`` in the place of a method of ``owner`` in the block."""
    before = vars(owner).get(name)
    setattr(owner, name, around(getattr(owner, name)))
    try:
        yield
    finally:
        delattr(owner, name)
        if before is not None:
            setattr(owner, name, before)
