"""Compare a layout's loss and gradients with one rank's, on this machine and these versions.

Adam divides by the gradient's own size, so a framework that scales gradients wrongly trains
on without a sign, except that clipping, logged norms and every other optimizer are wrong.
Here the gradient itself is compared, parameter by parameter: after one Adam step from zero
its first moment is ``(1 - beta1)`` times the gradient.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from megads.cluster.ranks import RankInfo
from megads.comm.grid import Grid
from megads.comm.groups import Groups, join_ranks
from megads.comm.messages import all_gather_values
from megads.config.schema import RunConfig
from megads.engine.build import make_engine
from megads.errors import EXIT_DONE, EXIT_FAILED
from megads.models.build import build_model
from megads.monitor.run_state.outcome import Outcome, write_outcome
from megads.parallel.tensor import take_shard

TOLERANCE = {"fp32": 1e-4, "bf16": 5e-2, "fp16": 5e-2}
"""Of the norm of a parameter's difference, relative to the norm of its gradient."""

REFERENCE_TOKENS = 4096
"""Of the samples that the reference computes together."""


@dataclass(frozen=True)
class Difference:
    """How one parameter's gradient differs from one rank's."""

    name: str
    stage: int
    error: float  # |ours - reference| / |reference|
    scale: float  # |ours| / |reference|


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare_gradients` found; the same on every rank."""

    loss: float
    reference_loss: float
    grad_norm: float
    reference_norm: float
    parameters: tuple[Difference, ...]
    tolerance: float

    @property
    def wrong(self) -> tuple[Difference, ...]:
        """The parameters beyond the tolerance, the worst first."""
        found = (each for each in self.parameters if not each.error <= self.tolerance)
        return tuple(sorted(found, key=lambda each: -each.error))

    @property
    def is_equal(self) -> bool:
        """Whether loss, norm and every gradient agree."""
        pairs = ((self.loss, self.reference_loss), (self.grad_norm, self.reference_norm))
        return not self.wrong and all(abs(ours - theirs) <= self.tolerance * theirs for ours, theirs in pairs)


def compare_run(run: RunConfig, run_dir: Path, info: RankInfo, env: Mapping[str, str]) -> Outcome:
    """Join the other ranks, compare, write the outcome; rank 0 prints the report. Collective."""
    _, device, groups = join_ranks(run, info, env)
    found = compare_gradients(run, groups, device)
    outcome = Outcome(EXIT_DONE, "equal", 0) if found.is_equal else Outcome(EXIT_FAILED, "not equal", 0)
    if info.rank == 0:
        sys.stdout.write(report(found))
        write_outcome(run_dir, outcome)
    return outcome


def compare_gradients(run: RunConfig, groups: Groups, device: torch.device) -> Comparison:
    """Take one step of ``run``'s layout on random tokens and compare it with one rank. Collective.

    ``run`` has the derived settings of a model small enough for one rank, without clipping and dropout.
    """
    samples = _samples(run)
    loss, gradients = _reference(run, samples, device)
    engine = make_engine(run, groups, device)
    blocks = samples.view(run.train.grad_acc_steps, run.parallel.data, run.train.micro_batch, -1)
    result = engine.train_step([block[groups.data_rank].to(device) for block in blocks], lr=0.0)
    mine = []
    for state in engine.state.by_parameter():
        ours = state.tensors["exp_avg"] / (1 - run.optim.adam_beta1)
        shard = getattr(state.parameter, "shard", None)
        theirs = take_shard(gradients[state.name], shard, groups.tensor_rank, groups.tensor_size)
        size = theirs.norm().clamp(min=1e-30)
        error, scale = float((ours.to(theirs) - theirs).norm() / size), float(ours.norm() / size)
        error = math.inf if math.isnan(error) else error  # so that it counts as the worst
        mine.append(Difference(state.name, groups.pipe_rank, error, scale))
    everyone: list[list[Difference]] = all_gather_values(mine)
    worst: dict[tuple[str, int], Difference] = {}
    for each in (each for rank in everyone for each in rank):
        key = (each.name, each.stage)
        if key not in worst or each.error > worst[key].error:
            worst[key] = each
    norm = float(torch.stack([g.norm() for g in gradients.values()]).norm())
    return Comparison(
        float(result.loss), loss, result.grad_norm, norm, tuple(worst.values()), TOLERANCE[run.train.dtype]
    )


def _samples(run: RunConfig) -> Tensor:
    """Return the step's ``[global batch, seq_length + 1]`` tokens, the same on every rank."""
    shape = (run.train.global_batch, run.model.seq_length + 1)
    generator = torch.Generator().manual_seed(run.train.seed)
    return torch.randint(0, run.model.vocab_size, shape, generator=generator)


def _reference(run: RunConfig, samples: Tensor, device: torch.device) -> tuple[float, dict[str, Tensor]]:
    """Return the loss and the gradients of the whole model, in fp32 and plain torch, on this rank alone."""
    alone = run.model_copy(update={"parallel": run.parallel.model_copy(update={"pipeline": 1})})
    model = build_model(alone, Groups(Grid(), 0)).to(device)
    samples = samples.to(device)
    total = 0.0
    # Few at a time for memory, and not one by one: there are as many as data-parallel ranks.
    for some in samples.split(max(1, REFERENCE_TOKENS // run.model.seq_length)):
        loss = model(some[:, :-1], some[:, 1:]) * (len(some) / len(samples))
        loss.backward()
        total += float(loss.detach())
    return total, {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def report(found: Comparison) -> str:
    """Return the comparison as lines for a terminal."""
    lines = [
        f"loss       {found.loss:.6f}, one rank {found.reference_loss:.6f}",
        f"grad norm  {found.grad_norm:.6f}, one rank {found.reference_norm:.6f}",
    ]
    for stage in sorted({each.stage for each in found.parameters}):
        rows = [each for each in found.parameters if each.stage == stage]
        worst = max(rows, key=lambda each: each.error)
        scale = sorted(each.scale for each in rows)[len(rows) // 2]
        lines.append(
            f"stage {stage}    {len(rows)} parameters, gradients {scale:.4g} times one rank's, "
            f"largest difference {worst.error:.1e} ({worst.name})"
        )
    if found.is_equal:
        lines.append(f"equal within {found.tolerance:g}: this layout computes what one rank computes")
    else:
        names = ", ".join(each.name for each in found.wrong[:5]) or "loss or norm"
        lines.append(f"NOT EQUAL within {found.tolerance:g}: {names}; do not train with this layout and these versions")
    return "\n".join(lines) + "\n"
