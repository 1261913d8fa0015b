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
from megads.engine.loss_terms import LossTerms
from megads.engine.marks import move
from megads.engine.micro_batches import MicroBatch
from megads.engine.optim.build import labels
from megads.engine.tied_embedding import tie
from megads.models.gpt import GPT


class PipelineEngine(DeepSpeedEngine):
    """An :class:`megads.engine.base.Engine` whose model is cut over the pipe axis; ZeRO 0 or 1.

    A rank holds one stage, ``module``. Micro-batches pass through the stages and their gradients come
    back, at most ``PP - stage`` of them under way at a time (the 1F1B schedule of
    arXiv 1806.03377). A micro-batch sends ``[B, s, H]`` over each boundary, once in each
    direction and in the model's type; s is ``SEQ / SP``, or that over TP with ``scatter_norms``.
    """

    def __init__(self, module: GPT, run: RunConfig, groups: Groups, device: torch.device, eod: int | None = None):
        self.is_last = groups.pipe_rank == groups.pipe_size - 1
        self.tied = tie(move(module, device), groups)
        if self.tied is not None:  # in DeepSpeed's norms the embedding counts once
            module.embedding.weight.ds_pipe_replicated = self.tied.is_copy  # type: ignore[attr-defined]
        self.parameter_groups = len(labels(run))
        super().__init__(module, run, groups, device, eod)

    def _initialize(self, deepspeed: Any, module: GPT, optimizer: torch.optim.Optimizer) -> Any:
        from megads.engine.deepspeed.stage import StageEngine

        return StageEngine(module, optimizer, self.config, self.groups, self.tied, self.parameter_groups)

    # Training

    def _train_step(self, parts: Sequence[MicroBatch], accepts: Callable[[float], bool] | None) -> StepResult:
        engine = self.engine
        skipped, scale = engine.skipped_steps, self.loss_scale
        found: tuple[list[Tensor], float, bool] = [], math.nan, False

        def update() -> None:
            nonlocal found
            found = self.update(engine.change_weights, [engine.find_loss()], accepts)

        engine.update, engine.shape = update, self.boundary(parts[0].tokens)
        # Only the last stage needs the weight of a token's loss.
        weight = self.split.token_weight(parts) if self.is_last else torch.zeros((), device=self.device)
        engine.module.parts, engine.module.terms = iter(parts), LossTerms(self.module, self.device)
        engine.train_batch(iter([(part.tokens, (part.labels, weight)) for part in parts]))
        (loss,), norm, rejected = found
        losses = engine.module.terms.mean(len(parts), self.groups)
        return StepResult(loss, norm, engine.skipped_steps > skipped, scale, rejected, losses=losses)

    def boundary(self, tokens: Tensor) -> tuple[int, ...]:
        """Return the shape of what passes between two stages for these ``tokens``."""
        return self.module.boundary(*tokens.shape)

    def eval_part(self, part: MicroBatch, measure: Callable[[Any, Any], Tensor]) -> Tensor | None:
        """Pass a micro-batch through the stages; the last one returns ``measure`` of its outputs and labels."""
        stage = self.groups.pipe_rank
        x = part.tokens if stage == 0 else self.engine.receive(self.boundary(part.tokens), stage - 1)
        if self.is_last:
            return self.module(x, part.target, documents=part.documents, measure=measure)
        x = self.module(x, documents=part.documents)
        self.engine.send(x, stage + 1)
        return None
