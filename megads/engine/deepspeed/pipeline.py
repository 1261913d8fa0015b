"""The model as pipeline stages, on DeepSpeed's 1F1B schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from megads.comm.groups import Groups
from megads.config.schema import RunConfig
from megads.engine.base import StepResult
from megads.engine.deepspeed.engine import DeepSpeedEngine
from megads.engine.micro_batches import MicroBatch
from megads.engine.optim.build import labels
from megads.engine.tied_embedding import tie
from megads.models.gpt import GPT


class PipelineEngine(DeepSpeedEngine):
    """An :class:`megads.engine.base.Engine` whose model is cut over the pipe axis; ZeRO 0 or 1.

    A rank holds one stage. Micro-batches pass through the stages and their gradients come
    back, at most ``PP - stage`` of them under way at a time (the 1F1B schedule of
    arXiv 1806.03377). A micro-batch sends ``[B, s, H]`` over each boundary, once in each
    direction and in the model's type; s is ``SEQ / SP``, or that over TP with ``scatter_norms``.

    Args:
        module: this rank's stage, float32 on the CPU.
        run: the derived settings.
        groups: the grid's process groups.
        device: where the stage goes.
        eod: the token that ends a document; None where no setting of ``run.data`` needs it.
    """

    def __init__(self, module: GPT, run: RunConfig, groups: Groups, device: torch.device, eod: int | None = None):
        self.hidden = run.model.hidden_size
        self.scattered_over = groups.tensor_size if run.parallel.scatter_norms else 1
        self.plain_norm: float | None = None
        self.accepts: Callable[[float], bool] | None = None
        self.rejected = False
        self.tied = tie(module, groups)
        self.parameter_groups = len(labels(run))
        super().__init__(module, run, groups, device, eod)
        self.engine.may_step = self.may_step

    def _initialize(self, deepspeed: Any, module: GPT, optimizer: torch.optim.Optimizer) -> Any:
        from megads.engine.deepspeed.stage import make_stage_engine

        return make_stage_engine(module, optimizer, self.config, self.groups, self.tied, self.parameter_groups)

    @property
    def is_first(self) -> bool:
        """Whether this rank's stage begins with the embedding."""
        return self.groups.pipe_rank == 0

    @property
    def is_last(self) -> bool:
        """Whether this rank's stage ends with the loss."""
        return self.groups.pipe_rank == self.groups.pipe_size - 1

    # Training

    def _train_step(self, parts: Sequence[MicroBatch], accepts: Callable[[float], bool] | None) -> StepResult:
        engine = self.engine
        skipped = engine.skipped_steps
        scale = self.loss_scale
        self.plain_norm, self.accepts, self.rejected = None, accepts, False
        engine.shape = self.boundary(parts[0].tokens)
        weight = self.weight_of(parts)
        engine.module.parts = iter(parts)
        loss = engine.train_batch(iter([(part.tokens, (part.labels, weight)) for part in parts]))
        norm = self.plain_norm if self.plain_norm is not None else self.norm_of_step(self.rejected)
        return StepResult(loss, norm, engine.skipped_steps > skipped, scale, self.rejected)

    def may_step(self) -> bool:
        """Return whether the step is accepted and its gradients are finite, or the optimizer finds out by itself.

        Called at every stage when all gradients are there. What is not to change is done with when it returns False.
        """
        if self.accepts is not None:
            loss = self.same_everywhere(self.engine.find_loss())
            self.rejected = not self.accepts(float(loss))
            if self.rejected:
                self.plain_norm = self.plain_grad_norm() if self.state.holds_plain_gradients else None
                self.reject(self.engine.change_weights)
                return False
        if not self.state.holds_plain_gradients:
            return True
        self.plain_norm = self.plain_grad_norm()
        if math.isfinite(self.plain_norm):
            return True
        self.skip_step()
        return False

    def weight_of(self, parts: Sequence[MicroBatch]) -> Tensor:
        """Return the weight of a token's loss; elsewhere than on the last stage nobody needs it."""
        return super().weight_of(parts) if self.is_last else torch.zeros((), device=self.device)

    def boundary(self, tokens: Tensor) -> tuple[int, ...]:
        """Return the shape of what passes between two stages for these ``tokens``."""
        micro_batch, length = tokens.shape
        return micro_batch, length // self.scattered_over, self.hidden

    def sample_losses(self, part: MicroBatch) -> Tensor | None:
        """Pass a micro-batch through the stages; the last one returns sum and count of every sample."""
        stage = self.groups.pipe_rank
        x = part.tokens if self.is_first else self.engine.receive(self.boundary(part.tokens), stage - 1)
        x = self.module(x, documents=part.documents)
        if self.is_last:
            return self.module.sample_losses(x, part.labels)
        self.engine.send(x, stage + 1)
        return None

    # State

    def spread(self) -> None:
        """Have everything else follow from the pieces, also the copy of a tied embedding."""
        super().spread()
        if self.tied is not None:
            self.tied.share()
