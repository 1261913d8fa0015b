"""DeepSpeed as the engine: ZeRO 0 to 3 in fp32, bf16 and fp16, without a pipeline.

What is done here and not left to DeepSpeed's defaults was measured on 0.19.8: how
tensor-parallel shards are counted in the gradient norm, which ZeRO stage a half-precision
run needs, and that nothing may be compiled at run time (a killed build leaves a lock on
which every later run waits forever).
"""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import megads.timing.collectives as dist
from megads.cluster.ranks import exported_local_rank
from megads.comm.groups import Groups
from megads.config.deepspeed.dictionary import deepspeed_config
from megads.config.schema import RunConfig
from megads.engine.base import Labelled, MemoryUsage, StepResult
from megads.engine.deepspeed.driver import Driver
from megads.engine.deepspeed.host_read import HostRead, on_host
from megads.engine.deepspeed.memory_usage import memory_usage
from megads.engine.deepspeed.package import Mpu, import_deepspeed, time_communication
from megads.engine.deepspeed.skipped_step import StepRejection, scale_by_rules
from megads.engine.deepspeed.state import DeepSpeedState
from megads.engine.deepspeed.zero import (
    fit_to,
    keep_gathered,
    reduce_once,
    set_second_partition_group,
    share_buffers,
)
from megads.engine.evaluation import measured
from megads.engine.loss_terms import LossTerms
from megads.engine.marks import check_same, mark_counted, move
from megads.engine.micro_batches import MicroBatch
from megads.engine.optim.step_numbers import StepNumbers
from megads.engine.partial_gradients import PartialGradients
from megads.engine.task_batches import make_splitter
from megads.engine.tied_embedding import TiedEmbedding
from megads.engine.upload import to_device
from megads.errors import DeviceError
from megads.models.gpt import GPT
from megads.timing.sections import BACKWARD, FORWARD, OPTIMIZER, in_section, section


class DeepSpeedEngine:
    """An :class:`megads.engine.base.Engine` on DeepSpeed.

    Args:
        module: the model on its device, in the precision of the run, or partitioned (``megads.engine.deepspeed.zero``).
        eod: the token that ends a document; None where no setting of ``run.data`` needs it.
    """

    tied: TiedEmbedding | None = None

    def __init__(self, module: GPT, run: RunConfig, groups: Groups, device: torch.device, eod: int | None = None):
        self.groups, self.device, self.loss_names = groups, device, module.loss_names
        self.split = make_splitter(run, groups, eod)
        self.config = deepspeed_config(run, groups.grid.world_size)
        fit_to(module, self.config)
        is_partitioned = any(hasattr(parameter, "ds_id") for parameter in module.parameters())
        self.module: GPT = module if is_partitioned else move(module, device)
        names = {parameter: name for name, parameter in module.named_parameters()}
        mark_counted(module, groups.tensor_rank)
        self.driver = Driver(run, module)
        deepspeed = import_deepspeed()
        if run.train.dtype == "fp16" and not deepspeed.get_accelerator().is_fp16_supported():
            raise DeviceError(
                f"DTYPE=fp16: the {device.type} of this host does not support fp16; use DTYPE=bf16 or fp32"
            )
        if not is_partitioned:
            set_second_partition_group(run, groups)
        # DeepSpeed reports memory and op builds with bare prints; a run's log is ours.
        quiet = contextlib.redirect_stdout(io.StringIO())
        with quiet, exported_local_rank(device.index or 0), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.engine = self._initialize(deepspeed, module, self.driver.optimizer)
        check_same(names, module)
        self.reading = HostRead(self.engine.optimizer)
        self.rejection = StepRejection(self.engine.optimizer)
        scale_by_rules(self.engine.optimizer)
        share_buffers(self.engine.optimizer)
        self.partial = PartialGradients(module)
        reduce_once(self.engine, groups, self.partial)
        keep_gathered(module)
        time_communication(self.engine)
        self.state = DeepSpeedState(self.engine, names, groups, self.driver.row, self.driver.optimizer, self.tied)
        self.driver.attach(self.state, groups, device)
        self.numbers = StepNumbers(self.state, self.driver.stepped(), device, run.log)

    def _initialize(self, deepspeed: Any, module: GPT, optimizer: torch.optim.Optimizer) -> Any:
        engine, *_ = deepspeed.initialize(
            model=module, optimizer=optimizer, config=self.config, mpu=Mpu(self.groups), dist_init_required=False
        )
        return engine

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
        self.take_micro_batches(len(batches))
        self.set_rates(lr, weight_decay)
        self.driver.begin()
        split = self.split
        with self.surroundings():
            parts = split.with_dropout(to_device(split(batches), self.device), first_sample)
            if self.driver.looks_at_hessian():
                with self.driver.estimating(int(split.counted_tokens(parts))):
                    drawn = split.with_random_labels(parts, int(self.state.steps()))
                    self._train_step(split.with_dropout(drawn, first_sample, turn=1), None)
            self.numbers.zeros = []
            result = self._train_step(parts, accepts)
            return replace(result, **self.numbers.read(skipped=result.skipped))

    def _train_step(self, parts: Sequence[MicroBatch], accepts: Callable[[float], bool] | None) -> StepResult:
        engine = self.engine
        self.module.train()
        skipped, scale = engine.skipped_steps, self.loss_scale
        weight = self.split.token_weight(parts)
        total, terms = torch.zeros((), device=self.device), LossTerms(self.module, self.device)
        for count, part in enumerate(parts, 1):
            with section(FORWARD):
                loss = engine(part.tokens, part.target, weight, documents=part.documents, draws=part.draws)
                total += loss.detach()
                terms.add()
            with section(BACKWARD):
                engine.backward(loss)
            if count < len(parts):
                with section(OPTIMIZER):
                    engine.step()  # counts the micro-batch
        mean, losses = self.mean_over_data(total / len(parts)), terms.mean(len(parts), self.groups)
        (mean, *values), norm, rejected = self.update(engine.step, [mean, *losses.values()], accepts)
        losses = dict(zip(losses, values, strict=True))
        return StepResult(mean, norm, engine.skipped_steps > skipped, scale, rejected, losses=losses)

    def update(
        self, step: Callable[[], None], numbers: Sequence[Tensor], accepts: Callable[[float], bool] | None
    ) -> tuple[list[Tensor], float, bool]:
        """Change the weights by ``step``, unless the loss is rejected or a gradient is not finite.

        Called when all gradients are there. A rejected step changes no weight, no moment and no loss scale.
        The host waits for the device once, and once more where ``accepts`` asks for the loss before.

        Args:
            numbers: the loss, and others that are wanted on the host.

        Returns:
            ``numbers`` on the host; the norm of the gradient, nan where a step was skipped before the norm was
            computed; and whether the step was rejected.
        """
        self.partial.check()
        rejected = accepts is not None and not accepts(float(self.same_everywhere(numbers[0])))
        if self.state.holds_plain_gradients:
            *found, whole = on_host([*numbers, self.plain_grad_norm()])
            norm = float(whole)
            if rejected or not math.isfinite(norm):
                self.skip_step()
                return found, norm, rejected
            with section(OPTIMIZER):
                step()
            return found, norm, rejected
        self.reading.begin(numbers)
        with section(OPTIMIZER), self.rejection if rejected else contextlib.nullcontext():
            step()
        self.state.weights_changed()
        last = self.rejection.norm if rejected else self.engine.get_global_grad_norm()
        return self.reading.end(), math.nan if last is None else float(last), rejected

    def same_everywhere(self, loss: Tensor) -> Tensor:
        """Return the ``loss`` of the first tensor-parallel rank, in place.

        All compute the same, but the last bit of a sum may depend on the place of a rank in a ring;
        what is decided by the loss must be decided the same way.
        """
        if self.groups.tensor is not None:
            dist.broadcast(loss, src=self.groups.ranks("tensor")[0], group=self.groups.tensor)
        return loss

    def eval_losses(self, batches: Sequence[Tensor]) -> Tensor:
        """Return every sample's loss; see :class:`megads.engine.base.Engine`."""
        return measured(
            self,
            to_device(self.split(batches), self.device),
            self.module.sample_losses,
            torch.float32,
            self.module.columns,
        )

    def eval_scores(self, batches: Sequence[Labelled]) -> Tensor:
        """Return every row's score; see :class:`megads.engine.base.Engine`."""
        return measured(
            self, to_device(self.split.labelled(batches), self.device), self.module.sample_scores, torch.float64
        )

    def eval_parts(self, parts: Sequence[MicroBatch], measure: Callable[[Any, Any], Tensor]) -> Iterable[Tensor | None]:
        """Return :meth:`eval_part` of every part."""
        return (self.eval_part(part, measure) for part in parts)

    def eval_part(self, part: MicroBatch, measure: Callable[[Any, Any], Tensor]) -> Tensor | None:
        """Return ``measure`` of the outputs and labels, in the model's forward pass; None: another stage has them."""
        return self.engine(part.tokens, part.target, documents=part.documents, measure=measure)

    def take_micro_batches(self, count: int) -> None:
        """Have the next step take ``count`` micro-batches: DeepSpeed scales by them and finds its last one by them."""
        engine = self.engine
        if count == engine.gradient_accumulation_steps():
            return
        engine.set_train_batch_size(engine.train_batch_size() // engine.gradient_accumulation_steps() * count)
        # The end of a step is where this is a multiple of the count.
        engine.micro_steps = 0

    def surroundings(self) -> contextlib.AbstractContextManager[None]:
        """Return what a forward or backward pass runs in: ZeRO 3 reads the environment while it runs."""
        return exported_local_rank(self.device.index or 0) if self.state.is_partitioned else contextlib.nullcontext()

    def set_rates(self, lr: float, weight_decay: float | None = None) -> None:
        """Set learning rate and, unless None, weight decay of the next step."""
        for group in self.engine.optimizer.param_groups:
            group["lr"] = lr
            if weight_decay is not None and group["decays"]:
                group["weight_decay"] = weight_decay

    @property
    def loss_scale(self) -> float:
        """The scale of the next backward pass; 1.0 unless fp16."""
        scaler = self.state.scaler
        return float(scaler.cur_scale) if scaler is not None else 1.0

    @in_section(OPTIMIZER)
    def plain_grad_norm(self) -> Tensor:
        """Return the norm of the reduced, unclipped gradients, counting each parameter once."""
        counted = [p.grad for p in self.state.parameters if p.grad is not None and p.tensor_model_parallel]
        square = torch.zeros((), dtype=torch.float64, device=self.device)
        if counted:
            square += torch.stack(torch._foreach_norm(counted)).double().square().sum()
        if self.groups.model is not None:
            dist.all_reduce(square, group=self.groups.model)
        return square.sqrt()

    def skip_step(self) -> None:
        """Leave every weight alone and count on, as the ZeRO optimizers do by themselves."""
        self.engine.zero_grad()
        self.engine.micro_steps += 1
        self.engine.global_steps += 1
        self.engine.skipped_steps += 1

    def mean_over_data(self, loss: Tensor) -> Tensor:
        """Return the mean of every data x seq rank's ``loss``, in place."""
        if self.groups.data_seq is not None:
            dist.all_reduce(loss, group=self.groups.data_seq)
            loss /= self.groups.data_seq_size
        return loss

    # Memory

    def memory_usage(self) -> MemoryUsage:
        """Return what the engine holds now; see :class:`megads.engine.base.Engine`."""
        return memory_usage(self.engine, self.module, self.device)

    def before_updates(self, look: Callable[..., None]) -> Callable[[], None]:
        """Have ``look`` called before every update; see :class:`megads.engine.base.Engine`."""
        register = getattr(self.engine.basic_optimizer, "register_step_pre_hook", None)
        return register(look).remove if register is not None else lambda: None
