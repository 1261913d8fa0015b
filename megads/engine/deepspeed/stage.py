"""DeepSpeed's pipeline with our stages and our groups. Imports DeepSpeed; see ``megads.engine.deepspeed.package``.

DeepSpeed gives the schedule, the optimizers and the reduction of gradients. What it would do
to build stages and groups (a list of layers to cut, groups made by every rank for every
rank) is not wanted, and what its versions do differently is done here, so that versions
0.16 to 0.19 compute the same: the scale of the gradient (issues 7773 and 8152) and the
messages between stages.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import deepspeed
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.module import PipelineModule
from deepspeed.utils.timer import NoopTimer
from torch import Tensor, nn

import megads.timing.collectives as dist
from megads.comm.groups import Groups
from megads.engine.deepspeed.package import Mpu
from megads.engine.loss_terms import LossTerms
from megads.engine.micro_batches import MicroBatch
from megads.engine.tied_embedding import TiedEmbedding
from megads.models.gpt import GPT
from megads.timing.sections import BACKWARD, FORWARD, OPTIMIZER, in_section


class StageGrid(Mpu):
    """Our groups under the names that DeepSpeed's pipeline asks of its own grid."""

    NAMES: ClassVar[dict[str, str]] = {**Mpu.NAMES, "pipe_parallel": "pipe", "slice_parallel": "tensor"}

    def __init__(self, groups: Groups):
        super().__init__(groups)
        self.data_parallel_size = groups.data_seq_size
        self.data_parallel_id = groups.ranks("data_seq").index(groups.rank)
        self.pipe_parallel_size = groups.pipe_size
        self.model_parallel_size = groups.tensor_size
        self.pp_group = list(groups.ranks("pipe"))
        self.get_global_rank = lambda: groups.rank
        self.get_stage_id = lambda: groups.pipe_rank
        self.stage_to_global = lambda stage_id: self.pp_group[stage_id]


class StageModule(PipelineModule):
    """One stage, already built.

    The constructor of the base class is skipped: it cuts, counts and builds layers, and
    makes more groups the larger the world is. What the engine reads of it is set here.
    """

    def __init__(self, gpt: GPT, grid: StageGrid):
        nn.Module.__init__(self)
        self.gpt = gpt
        self._grid = grid
        self._local_start, self._local_stop = 0, 1
        self.num_stages, self.stage_id = grid.pipe_parallel_size, grid.get_stage_id()
        self.global_rank = grid.get_global_rank()
        self.tied_comms: dict[str, Any] = {}
        self.activation_checkpoint_interval = 0
        self.activation_checkpoint_func = non_reentrant_checkpoint
        self.dynamic_shape = False
        self.parts: Iterator[MicroBatch] = iter(())
        self.part: MicroBatch | None = None  # the one that forward was called for last
        self.terms: LossTerms | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Run the stage's steps on the next micro-batch; they come in the order of :attr:`parts` at every stage."""
        self.part = part = next(self.parts)
        return self.gpt(x, documents=part.documents, draws=part.draws)

    def loss_fn(self, outputs: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss of the micro-batch that has just passed; ``target`` is its labels and a token's weight."""
        assert self.part is not None
        assert self.terms is not None
        loss = self.gpt.loss(outputs, self.part.target, target[1])
        self.terms.add()
        return loss


class Exchange(schedule.PipeInstruction):
    """The messages of one step of a schedule; ``commands`` are DeepSpeed's own instructions for them."""


MESSAGES = (schedule.SendActivation, schedule.RecvActivation, schedule.SendGrad, schedule.RecvGrad)


class _Exchanging:
    """A schedule of DeepSpeed whose messages that follow each other are one :class:`Exchange`.

    In 1F1B a stage sends a gradient up and receives the next activation from there in one step, while the
    stage above does the reverse: one after the other the two directions of a link take turns.
    """

    def __init__(self, plain: Any):
        self.plain, self.num_pipe_buffers = plain, plain.num_pipe_buffers

    def __iter__(self) -> Iterator[list[Any]]:
        for commands in self.plain:
            step: list[Any] = []
            for are_messages, each in itertools.groupby(commands, lambda command: isinstance(command, MESSAGES)):
                together = list(each)
                step.extend([Exchange(commands=together)] if are_messages else together)
            yield step


class StageEngine(PipelineEngine):
    """DeepSpeed's engine around this rank's stage, with what its versions differ in done here.

    The messages between stages have a shape that every rank knows (:attr:`shape`), so none
    is sent about it, and they go over the pipeline's own group.

    Args:
        tied: the embedding that the end stages share; None on a rank that shares none.
        parameter_groups: the optimizer's, of the whole model.
    """

    loss: Tensor

    def __init__(
        self,
        gpt: GPT,
        optimizer: torch.optim.Optimizer,
        config: Any,
        groups: Groups,
        tied: TiedEmbedding | None,
        parameter_groups: int,
    ):
        deepspeed.init_distributed(dist_init_required=False, verbose=False)
        grid = StageGrid(groups)
        module = StageModule(gpt, grid)
        options = {"config": config, "config_class": DeepSpeedConfig(config, grid), "mpu": grid}
        super().__init__(args=SimpleNamespace(), model=module, optimizer=optimizer, dist_init_required=False, **options)
        _sum_norms_alike(self.optimizer, parameter_groups)
        self.tied = tied
        self.pipe: dist.ProcessGroup = groups.process_group("pipe")
        self.shape: tuple[int, ...] = ()
        self.activation_type: torch.dtype = next(module.parameters()).dtype
        self.update: Callable[[], None] = self.change_weights
        self.found_loss: Tensor | None = None  # of this step
        if self.steps_per_print() is None:
            # Nobody would read the times, and the list of them would grow with every step.
            self.timers = NoopTimer()

    def wall_clock_breakdown(self) -> bool:
        """Return False: 0.19.8 starts the timer of a backward pass twice on all stages but the last, and asserts."""
        return False

    # Messages

    def send(self, x: Tensor, stage: int) -> None:
        """Send an activation or its gradient to a neighbouring stage."""
        dist.send(x.detach().contiguous(), self.grid.stage_to_global(stage), group=self.pipe)

    def receive(self, shape: tuple[int, ...], stage: int) -> Tensor:
        """Return what a neighbouring stage sent."""
        x = torch.empty(shape, dtype=self.activation_type, device=self.device)
        dist.recv(x, self.grid.stage_to_global(stage), group=self.pipe)
        return x

    def _exec_schedule(self, pipe_schedule: Any) -> None:
        super()._exec_schedule(_Exchanging(pipe_schedule))

    def _exec_exchange(self, commands: list[Any]) -> None:
        """Send and receive what one step of the schedule does before it computes, at the same time."""
        buffers, sent, received = self.pipe_buffers, [], {}
        for command in commands:
            at = command.kwargs["buffer_id"]
            if isinstance(command, schedule.SendActivation):
                sent.append((buffers["outputs"][at].detach().contiguous(), self.next_stage))
            elif isinstance(command, schedule.SendGrad):
                sent.append((buffers["inputs"][at].grad.contiguous(), self.prev_stage))
                buffers["inputs"][at] = None  # may be where the next activation goes
            else:
                x = torch.empty(self.shape, dtype=self.activation_type, device=self.device)
                received[type(command)] = (x, at)
        from_stage = {schedule.RecvActivation: self.prev_stage, schedule.RecvGrad: self.next_stage}
        dist.exchange(
            [(x, self.grid.stage_to_global(stage)) for x, stage in sent],
            [(x, self.grid.stage_to_global(from_stage[kind])) for kind, (x, _) in received.items()],
            self.pipe,
        )
        for kind, (x, at) in received.items():
            if kind is schedule.RecvActivation:
                buffers["inputs"][at] = x.requires_grad_()
            else:
                self.grad_layer = x

    # Work

    @in_section(FORWARD)
    def _exec_forward_pass(self, buffer_id: int) -> None:
        super()._exec_forward_pass(buffer_id)

    # Gradients

    def _backward_prologue_per_tensor(self, grad: Tensor) -> Tensor:
        return grad  # the loss was scaled, see below; 0.18.3 to 0.19.2 would scale again at every stage

    @in_section(BACKWARD)
    def _exec_backward_pass(self, buffer_id: int) -> None:
        if not self.is_last_stage():
            super()._exec_backward_pass(buffer_id)
            return
        # The one place where the mean over micro-batches is taken; 0.16.0 to 0.18.2 would not.
        loss = self.loss / self.gradient_accumulation_steps()
        DeepSpeedEngine.backward(self, loss, scale_wrt_gas=False)
        self.loss = self.loss.detach()
        self.pipe_buffers["outputs"][buffer_id] = None
        self.pipe_buffers["labels"][buffer_id] = None

    def _exec_reduce_tied_grads(self) -> None:
        if self.tied is not None:
            self.tied.add_gradients()

    def _exec_reduce_grads(self) -> None:
        if self.tied is None:
            super()._exec_reduce_grads()
            return
        with self.tied.unseen():
            super()._exec_reduce_grads()

    @in_section(OPTIMIZER)
    def _exec_optimizer_step(self, lr_kwargs: Any = None) -> None:
        self.update()
        if self.tied is not None:
            self.tied.share()

    def change_weights(self) -> None:
        """Do the optimizer's step, or what it does when gradients are not finite."""
        super()._exec_optimizer_step()

    # Loss

    def find_loss(self) -> Tensor:
        """Return the step's loss at every stage, before the weights change. Collective over pipeline and data."""
        with torch.no_grad():
            self.found_loss = super()._aggregate_total_loss().float()
        return self.found_loss

    def _aggregate_total_loss(self) -> Tensor:
        loss, self.found_loss = self.found_loss, None
        return super()._aggregate_total_loss() if loss is None else loss

    _INSTRUCTION_MAP = {  # noqa: RUF012 - the base class's name
        **PipelineEngine._INSTRUCTION_MAP,
        Exchange: _exec_exchange,
        schedule.ForwardPass: _exec_forward_pass,
        schedule.BackwardPass: _exec_backward_pass,
        schedule.ReduceTiedGrads: _exec_reduce_tied_grads,
        schedule.ReduceGrads: _exec_reduce_grads,
        schedule.OptimizerStep: _exec_optimizer_step,
    }


def _sum_norms_alike(optimizer: Any, parameter_groups: int) -> None:
    """Have every stage take part in as many sums of norms.

    ZeRO 1 sums over the stages once per parameter group, and a stage of nothing but the
    embedding or the last norm has fewer groups than the others: it would leave them waiting.
    """
    missing = parameter_groups - len(optimizer.param_groups)
    if missing <= 0 or type(optimizer).__name__ != "DeepSpeedZeroOptimizer":
        return
    norm_of_own = optimizer.scaled_global_norm

    def norm_of_all() -> Tensor:
        norms = [torch.as_tensor(norm_of_own(), device=optimizer.device)]
        for _ in range(missing):
            norm = (
                optimizer.complete_grad_norm_calculation_for_cpu_offload([])
                if optimizer.cpu_offload
                else optimizer.get_grad_norm_direct([], [])
            )
            norms.append(torch.as_tensor(norm, device=optimizer.device))
        together = torch.stack(norms)
        # A norm that is not finite comes as -1.
        return torch.where((together >= 0).all(), together.norm(), torch.inf)

    optimizer.scaled_global_norm = norm_of_all
