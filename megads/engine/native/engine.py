"""The engine on torch alone: ZeRO 0 to 3 in fp32, bf16 and fp16, without a pipeline.

Why flat buffers of our own and not FSDP2: docs/engine.md. What a step is: ``forward_backward`` adds gradients to the
units and reduces them on the way (``reduce.py``), ``update`` steps what this rank owns (``update.py``) and sends it
to the others (``gather.py``).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import megads.timing.collectives as dist
from megads.comm.groups import Groups
from megads.config.schema import RunConfig
from megads.engine.base import Labelled, MemoryUsage, StepResult
from megads.engine.evaluation import measured
from megads.engine.loss_scale import LossScale
from megads.engine.marks import check_marks
from megads.engine.memory_count import MemoryCounter
from megads.engine.micro_batches import MicroBatch
from megads.engine.native.backward import run_backward
from megads.engine.native.gather import Gatherer
from megads.engine.native.optimizers import NativeDriver
from megads.engine.native.reduce import Reducer, wire_of
from megads.engine.native.state import NativeState
from megads.engine.native.units import Unit, stage_of
from megads.engine.native.update import Updater, read_later
from megads.engine.optim.step_numbers import StepNumbers
from megads.engine.optim.whole_parameters import WholeOptimizer
from megads.engine.partial_gradients import PartialGradients
from megads.engine.task_batches import make_splitter
from megads.engine.tied_embedding import TiedEmbedding
from megads.engine.upload import to_device
from megads.models.gpt import GPT
from megads.timing.sections import BACKWARD, FORWARD, OPTIMIZER, in_section, section


class NativeEngine:
    """An :class:`megads.engine.base.Engine` on torch alone.

    Args:
        chunks: what this rank holds of the model, in order; one without a pipeline. Their parameters are in ``units``.
        eod: the token that ends a document; None where no setting of ``run.data`` needs it.

    Attributes:
        skipped_steps: since the start of the run.
    """

    tied: TiedEmbedding | None = None

    def __init__(
        self,
        chunks: Sequence[GPT],
        units: Sequence[Unit],
        run: RunConfig,
        groups: Groups,
        device: torch.device,
        eod: int | None = None,
    ):
        self.chunks, self.groups, self.run, self.device = list(chunks), groups, run, device
        self.units, self.frozen = ([unit for unit in units if unit.is_frozen is each] for each in (False, True))
        self.loss_names = chunks[0].loss_names
        self.split = make_splitter(run, groups, eod)
        for chunk in chunks:
            check_marks(chunk)
            _move_buffers(chunk, device)
        for unit in self.units:
            unit.take_masters()
        self.stage, self.clip_grad = stage_of(run, groups), run.optim.clip_grad
        self.scaler, self.skipped_steps = LossScale.of(run), 0
        self.partial = PartialGradients(torch.nn.ModuleList(chunks))
        self.reducer = Reducer(self.units, groups, self.stage, self.partial, wire_of(run))
        self.gatherer = Gatherer(chunks, units, run, groups, self.stage)
        self.reducer.completed, self.gatherer.passed = self.gatherer.completed, self.reducer.passed
        self.driver = NativeDriver(run, self.units)
        self.optimizer = self.driver.optimizer
        self.updater = Updater(self.units, self.optimizer, groups, device)
        self.state = NativeState(self, self.driver.row)
        self.driver.attach(self)
        self.numbers = StepNumbers(self.state, [self.optimizer], device, run.log)

    @property
    def module(self) -> GPT:
        """The model, with the weights of the last update; under ZeRO 3 in the :meth:`surroundings` of a pass only."""
        self.gatherer.finish()
        return self.chunks[0]

    # Training

    def prepare(self, batch: Tensor) -> Tensor:
        """Do what a batch needs on the host; see :class:`megads.engine.base.Engine`."""
        return self.split.prepare(batch)

    def train_step(
        self,
        batches: Sequence[Tensor],
        lr: float,
        *,
        first_sample: int = 0,
        weight_decay: float | None = None,
        accepts: Callable[[float], bool] | None = None,
    ) -> StepResult:
        """Update the weights once; see :class:`megads.engine.base.Engine`."""
        self.set_rates(lr, weight_decay)
        split = self.split
        parts = split.with_dropout(to_device(split(batches), self.device), first_sample)
        if self.driver.looks_at_hessian():
            with self.driver.estimating(int(split.counted_tokens(parts))):
                drawn = split.with_random_labels(parts, int(self.state.steps()))
                self._train_step(split.with_dropout(drawn, first_sample, turn=1), None)
        self.numbers.zeros = []
        result = self._train_step(parts, accepts)
        return replace(result, **self.numbers.read(skipped=result.skipped))

    def _train_step(self, parts: Sequence[MicroBatch], accepts: Callable[[float], bool] | None) -> StepResult:
        with self.surroundings():
            sums = self.forward_backward(parts, self.split.token_weight(parts))
        return self.update(sums / len(parts), accepts)

    def forward_backward(self, parts: Sequence[MicroBatch], weight: Tensor) -> Tensor:
        """Add the gradients of ``parts`` to the units.

        Returns:
            ``[1 + terms]``: the sums of the micro-batches' losses and of their terms, this rank's.
        """
        (module,) = self.chunks
        if not module.training:
            module.train()
        self.reducer.begin(len(parts))
        sums = self.no_sums()
        for part in parts:
            with section(FORWARD):
                loss = module(part.tokens, part.target, weight, documents=part.documents, draws=part.draws)
                self.add(sums, loss, module)
            self.backward(loss, len(parts))
        return sums

    def no_sums(self) -> Tensor:
        """Return what :meth:`forward_backward` does, of no micro-batch."""
        return torch.zeros(1 + (len(self.loss_names) if len(self.loss_names) > 1 else 0), device=self.device)

    def add(self, sums: Tensor, loss: Tensor, module: GPT) -> None:
        """Add the loss that ``module`` has just found, and its terms."""
        sums[0] += loss.detach()
        if len(sums) > 1:
            assert module.losses is not None
            sums[1:] += module.losses

    def backward(self, loss: Tensor, micro_batches: int) -> None:
        """Do the backward pass of one of so many micro-batches."""
        with section(BACKWARD), self.gatherer.backward():
            run_backward(loss, torch.full_like(loss, self.loss_scale / micro_batches))
        self.reducer.end_pass()

    def update(self, means: Tensor, accepts: Callable[[float], bool] | None) -> StepResult:
        """Change the weights, unless the loss is rejected or a gradient is not finite.

        A rejected step changes no weight, no moment and no loss scale. The host waits for the device once, and once
        more where ``accepts`` asks for the loss before.

        Args:
            means: ``[1 + terms]`` over this rank's micro-batches; zeros where other stages have the loss.
        """
        with section(BACKWARD):
            self.reducer.finish()
        self.gatherer.finish()  # of what no pass has used: it would overwrite the update
        self.partial.check()
        with section(OPTIMIZER):
            numbers = self._summed(means)
            norm, read = numbers[-1].sqrt(), read_later(numbers)
            scale, divisor = self.loss_scale, self.loss_scale * self.groups.data_seq_size
            rejected = accepts is not None and not accepts(_float32(read()[0]))
            if self.updater.waits and not rejected:
                norm = torch.tensor(read()[-1], dtype=torch.float64).sqrt()
            if not rejected and (not self.updater.waits or math.isfinite(norm)):
                self.updater.step(norm, divisor, self.clip_grad)
                self.weights_changed()
        *found, square = read()
        skipped = rejected or not math.isfinite(square)
        self.skipped_steps += skipped
        if self.scaler is not None and not rejected:
            self.scaler.update(skipped)
        loss, *terms = (torch.tensor(each, dtype=torch.float32) for each in found)
        losses = dict(zip(self.loss_names, terms, strict=True)) if terms else {}
        found_norm = math.sqrt(square) / divisor if math.isfinite(square) else math.inf
        return StepResult(loss, found_norm, skipped, scale, rejected, losses=losses)

    def _summed(self, means: Tensor) -> Tensor:
        """Return the means over all ranks, and the squared norm of the gradient, float64. Collective.

        All tensor-parallel ranks have found the same loss, but its last bit may depend on the place of a rank in a
        ring: that of the first one counts, so what is decided by the loss is decided the same way.
        """
        self.updater.begin()
        numbers = torch.cat([means.double() / self.groups.data_seq_size, self.updater.squares().view(1)])
        if self.groups.tensor_rank:
            numbers[:-1] = 0.0
        if self.groups.world is not None:
            dist.all_reduce(numbers, group=self.groups.world)
        return numbers

    def weights_changed(self) -> None:
        """Have the model compute with the masters as they are now, tied copies too. Collective; nothing waits."""
        self.gatherer.finish()
        self.updater.cast()
        self.gatherer.changed()

    def set_rates(self, lr: float, weight_decay: float | None = None) -> None:
        """Set learning rate and, unless None, weight decay of the next step."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
            if weight_decay is not None and group["decays"]:
                group["weight_decay"] = weight_decay

    @property
    def loss_scale(self) -> float:
        """The scale of the next backward pass; 1.0 unless fp16."""
        return self.scaler.cur_scale if self.scaler is not None else 1.0

    def surroundings(self) -> contextlib.AbstractContextManager[None]:
        """Return what the passes of a step run in: with the weights that they need."""
        return self.gatherer.surroundings()

    # Evaluation

    def eval_losses(self, batches: Sequence[Tensor]) -> Tensor:
        """Return every sample's loss; see :class:`megads.engine.base.Engine`."""
        last = self.chunks[-1]
        return measured(self, self.split(batches), last.sample_losses, torch.float32, last.columns)

    def eval_scores(self, batches: Sequence[Labelled]) -> Tensor:
        """Return every row's score; see :class:`megads.engine.base.Engine`."""
        return measured(self, self.split.labelled(batches), self.chunks[-1].sample_scores, torch.float64)

    def eval_parts(self, parts: Sequence[MicroBatch], measure: Callable[[Any, Any], Tensor]) -> Iterable[Tensor | None]:
        """Return :meth:`eval_part` of every part."""
        return (self.eval_part(part, measure) for part in parts)

    def eval_part(self, part: MicroBatch, measure: Callable[[Any, Any], Tensor]) -> Tensor | None:
        """Return ``measure`` of the outputs and labels, in the model's forward pass; None: another stage has them."""
        (module,) = self.chunks
        found: Tensor = module(part.tokens, part.target, documents=part.documents, measure=measure)
        return found

    # Memory

    @in_section(OPTIMIZER)
    def memory_usage(self) -> MemoryUsage:
        """Return what the engine holds now; see :class:`megads.engine.base.Engine`."""
        counter = MemoryCounter(self.device.type)
        copies = [each for chunk in self.chunks for each in (*chunk.parameters(), *chunk.buffers())]
        counter.add("weights", [*copies, *self.gatherer.second.values()])
        counter.add("weights", [each for unit in (*self.units, *self.frozen) for each in (unit.weights, unit.part)])
        counter.add("gradients", [each for unit in self.units for each in (unit.reduced, unit.gradients)])
        counter.add("gradients", [each.grad for each in copies if each.grad is not None])
        counter.add("optimizer", [unit.masters for unit in self.units])
        optimizers = self.optimizer.inner() if isinstance(self.optimizer, WholeOptimizer) else [self.optimizer]
        for each in optimizers:
            counter.add("optimizer", _tensors(list(each.state.values())))
        counter.add("buffers", self.reducer.buffers())
        return counter.found

    def before_updates(self, look: Callable[..., None]) -> Callable[[], None]:
        """Have ``look`` called before every update; see :class:`megads.engine.base.Engine`."""
        return self.optimizer.register_step_pre_hook(look).remove


def _move_buffers(module: torch.nn.Module, device: torch.device) -> None:
    for each in module.modules():
        for name, buffer in each.named_buffers(recurse=False):
            each.register_buffer(name, buffer.to(device), persistent=name not in each._non_persistent_buffers_set)


def _float32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))


def _tensors(where: Any) -> list[Tensor]:
    """Return the tensors in containers."""
    if isinstance(where, Tensor):
        return [where]
    inside = where.values() if isinstance(where, dict) else where if isinstance(where, list | tuple) else ()
    return [tensor for each in inside for tensor in _tensors(each)]
