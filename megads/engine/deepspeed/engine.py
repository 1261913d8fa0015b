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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import megads.timing.collectives as dist
from megads.checkpoint.owned_shard import OwnedShard
from megads.cluster.ranks import exported_local_rank
from megads.comm.groups import Groups
from megads.config.deepspeed.dictionary import deepspeed_config
from megads.config.schema import RunConfig
from megads.engine.base import ParameterState, StepResult
from megads.engine.deepspeed.norms import StepNumbers
from megads.engine.deepspeed.package import Mpu, import_deepspeed, mark_counted
from megads.engine.deepspeed.skipped_step import Veto, scale_by_rules
from megads.engine.deepspeed.state import EngineState
from megads.engine.deepspeed.timing import time_communication
from megads.engine.deepspeed.zero3 import set_second_partition_group
from megads.engine.deepspeed.zero_traffic import fit_bucket, keep_gathered, reduce_once, share_buffers
from megads.engine.micro_batches import MicroBatch, Splitter, with_draws
from megads.engine.optim.driver import Driver
from megads.engine.optim.sophia import uniforms
from megads.errors import DeviceError
from megads.models.gpt import GPT
from megads.timing.sections import BACKWARD, FORWARD, OPTIMIZER, in_section, section


class DeepSpeedEngine:
    """An :class:`megads.engine.base.Engine` on DeepSpeed.

    Args:
        module: the model, float32 on the CPU, or already partitioned (``megads.engine.deepspeed.zero3``).
        run: the derived settings.
        groups: the grid's process groups.
        device: where the model goes.
        eod: the token that ends a document; None where no setting of ``run.data`` needs it.
    """

    def __init__(self, module: GPT, run: RunConfig, groups: Groups, device: torch.device, eod: int | None = None):
        self.groups, self.device = groups, device
        self.split = Splitter(run, groups, eod)
        self.seed, self.dropout_seed = run.train.seed, run.train.seed_of_dropout
        self.config = deepspeed_config(run, groups.grid.world_size)
        fit_bucket(self.config, module)
        names = {parameter: name for name, parameter in module.named_parameters()}
        is_partitioned = any(hasattr(parameter, "ds_id") for parameter in names)
        self.module: GPT = module if is_partitioned else module.to(device)
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
        self.veto = Veto(self.engine.optimizer)
        scale_by_rules(self.engine.optimizer)
        share_buffers(self.engine.optimizer)
        reduce_once(self.engine, groups)
        keep_gathered(module)
        time_communication(self.engine)
        self.state = EngineState(self.engine, names, groups, self.driver.row)
        self.driver.attach(self.state, groups, device)
        self.numbers: StepNumbers | None = None
        if run.log.num_zeros or run.log.params_norm:
            asked = {"zeros": run.log.num_zeros, "norm": run.log.params_norm}
            # ZeRO 3 has one more for what it does not offload.
            more = [each for each in (getattr(self.engine.optimizer, "backup_optimizer", None),) if each is not None]
            self.numbers = StepNumbers([self.driver.optimizer, *more], self.state.calls(), groups, device, **asked)

    def _initialize(self, deepspeed: Any, module: GPT, optimizer: torch.optim.Optimizer) -> Any:
        engine, *_ = deepspeed.initialize(
            model=module, optimizer=optimizer, config=self.config, mpu=Mpu(self.groups), dist_init_required=False
        )
        return engine

    # Training

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
        with self.surroundings():
            place = (self.dropout_seed, first_sample, self.groups, self.device)
            parts = with_draws(self.split(batches), *place)
            if self.driver.looks_at_hessian():
                with self.driver.estimating(int(self.counted_tokens(parts))):
                    self._train_step(with_draws(self.drawn(parts), *place, turn=1), None)
            if self.numbers is None:
                return self._train_step(parts, accepts)
            self.numbers.begin()
            result = self._train_step(parts, accepts)
            return replace(result, **self.numbers.read(skipped=result.skipped))

    def _train_step(self, parts: Sequence[MicroBatch], accepts: Callable[[float], bool] | None) -> StepResult:
        engine = self.engine
        self.module.train()
        skipped = engine.skipped_steps
        scale = self.loss_scale
        weight = self.weight_of(parts)
        total = torch.zeros((), device=self.device)
        plain_norm = None
        rejected = False
        for part in parts:
            with section(FORWARD):
                loss = engine(part.tokens, part.labels, weight, documents=part.documents, draws=part.draws)
                total += loss.detach()
            with section(BACKWARD):
                engine.backward(loss)
            if accepts is not None and engine.is_gradient_accumulation_boundary():
                mean = self.same_everywhere(self.mean_over_data(total / len(parts)))
                if rejected := not accepts(float(mean)):
                    plain_norm = self.plain_grad_norm() if self.state.holds_plain_gradients else None
                    with section(OPTIMIZER):
                        self.reject(engine.step)
                    continue
            if self.state.holds_plain_gradients and engine.is_gradient_accumulation_boundary():
                plain_norm = self.plain_grad_norm()
                if not math.isfinite(plain_norm):
                    self.skip_step()
                    continue
            with section(OPTIMIZER):
                engine.step()
        loss = self.mean_over_data(total / len(parts)) if accepts is None else mean
        norm = plain_norm if plain_norm is not None else self.norm_of_step(rejected)
        return StepResult(loss, norm, engine.skipped_steps > skipped, scale, rejected)

    def norm_of_step(self, rejected: bool) -> float:
        """Return the norm that the optimizer found; nan where a step was skipped before anything asked for it."""
        if rejected:
            return self.veto.norm
        norm = None if self.state.holds_plain_gradients else self.engine.get_global_grad_norm()
        return math.nan if norm is None else float(norm)

    def same_everywhere(self, loss: Tensor) -> Tensor:
        """Return the ``loss`` of the first tensor-parallel rank, in place.

        All compute the same, but the last bit of a sum may depend on the place of a rank in a ring;
        what is decided by the loss must be decided alike.
        """
        if self.groups.tensor is not None:
            dist.broadcast(loss, src=self.groups.ranks("tensor")[0], group=self.groups.tensor)
        return loss

    def reject(self, step: Callable[[], None]) -> None:
        """Leave every weight, every moment and the loss scale alone; ``step`` is what would have changed them."""
        if self.state.holds_plain_gradients:
            self.skip_step()
            return
        with self.veto:
            step()

    def eval_loss(self, batches: Sequence[Tensor]) -> Tensor:
        """Return the mean loss on ``batches``; see :class:`megads.engine.base.Engine`."""
        total, count = self.eval_losses(batches).sum(dim=0)
        return total / count.clamp(min=1)

    def eval_losses(self, batches: Sequence[Tensor]) -> Tensor:
        """Return every sample's loss; see :class:`megads.engine.base.Engine`."""
        self.module.eval()
        groups = self.groups
        shape = (len(batches), groups.data_size, len(batches[0]), 2)
        sums = torch.zeros(shape, dtype=torch.float32, device=self.device)
        with self.surroundings(), torch.no_grad(), self.driver.in_use(self.spread):
            for mine, part in zip(sums[:, groups.data_rank], self.split(batches), strict=True):
                found = self.sample_losses(part)
                # Every tensor rank finds the same; it is to be summed once.
                if found is not None and groups.tensor_rank == 0:
                    mine.copy_(found)
        if groups.world is not None:
            dist.all_reduce(sums, group=groups.world)
        return sums.flatten(0, 2)

    def sample_losses(self, part: MicroBatch) -> Tensor | None:
        """Return sum and count of every sample's tokens on this rank, ``[micro_batch, 2]``; None: on another stage."""
        return self.module.sample_losses(self.engine(part.tokens, documents=part.documents), part.labels)

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

    def weight_of(self, parts: Sequence[MicroBatch]) -> Tensor:
        """Return what the sum of a micro-batch's token losses is multiplied by, [] float32.

        The engine averages over micro-batches and over data x seq ranks, which hold unequal
        numbers of counted tokens; with this weight the result is the mean over all counted
        tokens of the step, the same in every layout.
        """
        return len(parts) * self.groups.data_seq_size / self.counted_tokens(parts).clamp(min=1).float()

    def counted_tokens(self, parts: Sequence[MicroBatch]) -> Tensor:
        """Return how many tokens of the step count, over all ranks, [] int64."""
        if not self.split.masks_loss:
            count = sum(part.labels.numel() for part in parts) * self.groups.data_seq_size
            return torch.tensor(count, device=self.device)
        found = torch.stack([(part.labels >= 0).sum() for part in parts]).sum()
        if self.groups.data_seq is not None:
            dist.all_reduce(found, group=self.groups.data_seq)
        return found

    def drawn(self, parts: Sequence[MicroBatch]) -> list[MicroBatch]:
        """Return ``parts`` with numbers in [0, 1) for labels, from which the model's own labels are drawn.

        They follow from the seed, the step, and the place in the step's samples, not from the layout.
        """
        groups = self.groups
        made = []
        for i, part in enumerate(parts):
            rows, length = part.labels.shape
            first = (i * groups.data_size + groups.data_rank) * rows
            at = groups.seq_rank * length
            seed = (self.seed, int(self.state.steps()))
            numbers = uniforms(seed, range(first, first + rows), at + length)[:, at:].to(self.device)
            made.append(replace(part, labels=numbers.masked_fill(part.labels < 0, -1.0)))
        return made

    @property
    def loss_scale(self) -> float:
        """The scale of the next backward pass; 1.0 unless fp16."""
        scaler = getattr(self.engine.optimizer, "loss_scaler", None)
        return float(scaler.cur_scale) if scaler is not None else 1.0

    @in_section(OPTIMIZER)
    def plain_grad_norm(self) -> float:
        """Return the norm of the reduced, unclipped gradients, counting each parameter once."""
        counted = [p.grad for p in self.state.parameters if p.grad is not None and p.tensor_model_parallel]
        square = torch.zeros((), dtype=torch.float64, device=self.device)
        if counted:
            square += torch.stack(torch._foreach_norm(counted)).double().square().sum()
        if self.groups.model is not None:
            dist.all_reduce(square, group=self.groups.model)
        return float(square.sqrt())

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

    # State

    def states(self) -> Iterator[ParameterState]:
        """Yield every parameter's state; see :class:`megads.engine.base.Engine`."""
        return self.state.states()

    def pieces(self) -> Iterator[OwnedShard]:
        """Yield what this rank answers for; see :class:`megads.engine.base.Engine`."""
        return self.state.pieces()

    def spread(self) -> None:
        """Have everything else follow from the pieces; see :class:`megads.engine.base.Engine`."""
        self.state.spread()

    def whole_states(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the state of what this rank steps as a whole; see :class:`megads.engine.base.Engine`."""
        return self.driver.states()

    def load_whole_states(self, state_of: Callable[[str], Mapping[str, Any]]) -> None:
        """Set the state of what this rank steps as a whole; see :class:`megads.engine.base.Engine`."""
        self.driver.load_states(state_of)

    def reset_optimizer(self) -> None:
        """Have the optimizer begin again; see :class:`megads.engine.base.Engine`."""
        self.driver.load_states(lambda name: {})
        self.state.reset()

    def scalars(self) -> dict[str, float]:
        """Return the numbers besides the tensors; see :class:`megads.engine.base.Engine`."""
        return self.state.scalars()

    def load_scalars(self, values: Mapping[str, float]) -> None:
        """Take back what :meth:`scalars` gave."""
        self.state.load_scalars(values)
