"""DeepSpeed as the engine: ZeRO 0 and 1 in fp32, bf16 and fp16.

The only module that imports deepspeed. What is done here and not left to DeepSpeed's
defaults was measured on 0.19.8: how tensor-parallel shards are counted in the gradient
norm, which ZeRO stage a half-precision run needs, and that nothing may be compiled at
run time (a killed build leaves a lock on which every later run waits for ever).
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megads.cluster.ranks import exported_local_rank
from megads.config.deepspeed import deepspeed_config
from megads.config.schema import RunConfig
from megads.dist.groups import Groups
from megads.engine.base import ParameterState, StepResult, decay_groups
from megads.errors import DeviceError

MOMENTS = ("exp_avg", "exp_avg_sq")


class Mpu:
    """Our groups under the names DeepSpeed asks for.

    The data-parallel group is data x seq: gradients average over both. The model-parallel
    group is tensor x pipe: gradient norms and overflows are summed over it. Nothing named
    ``*sequence*`` is offered, because its presence switches tensor parallelism off.
    """

    def __init__(self, groups: Groups):
        self.groups = groups

    def _size(self, *axes: str) -> int:
        size = 1
        for axis in axes:
            size *= getattr(self.groups.grid, axis)
        return size

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        """Return the group over which gradients are averaged."""
        return self.groups.process_group("data_seq")

    def get_data_parallel_world_size(self) -> int:
        """Return the size of data x seq."""
        return self._size("data", "seq")

    def get_data_parallel_rank(self) -> int:
        """Return this rank's place in data x seq."""
        return dist.get_rank(self.get_data_parallel_group())

    def get_data_parallel_group_ranks(self) -> list[int]:
        """Return the global ranks of data x seq."""
        return dist.get_process_group_ranks(self.get_data_parallel_group())

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        """Return the group over which the gradient norm is summed."""
        return self.groups.process_group("model")

    def get_model_parallel_world_size(self) -> int:
        """Return the size of tensor x pipe."""
        return self._size("pipe", "tensor")

    def get_model_parallel_rank(self) -> int:
        """Return this rank's place in tensor x pipe."""
        return dist.get_rank(self.get_model_parallel_group())

    def get_tensor_model_parallel_group(self) -> dist.ProcessGroup:
        """Return the tensor-parallel group."""
        return self.groups.process_group("tensor")

    def get_tensor_model_parallel_world_size(self) -> int:
        """Return the tensor-parallel degree."""
        return self._size("tensor")

    def get_tensor_model_parallel_rank(self) -> int:
        """Return this rank's place along the tensor axis."""
        return self.groups.tensor_rank

    def get_pipeline_model_parallel_group(self) -> dist.ProcessGroup:
        """Return the pipeline group."""
        return self.groups.process_group("pipe")

    def get_pipeline_model_parallel_world_size(self) -> int:
        """Return the number of pipeline stages."""
        return self._size("pipe")

    def get_pipeline_model_parallel_rank(self) -> int:
        """Return this rank's stage."""
        return self.groups.pipe_rank


def _import_deepspeed() -> Any:
    """Import DeepSpeed quietly, with every op that would be compiled at run time switched off."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed
        from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def _mark_counted(module: nn.Module, tensor_rank: int) -> None:
    """Mark the parameters that this rank adds to the gradient norm.

    DeepSpeed reads ``tensor_model_parallel`` as "count here": a shard counts on every
    tensor rank, a replicated parameter only on the first. Without the marks the norm, and
    with it clipping, is wrong and nothing says so.
    """
    for parameter in module.parameters():
        sharded = getattr(parameter, "shard", None) is not None
        parameter.tensor_model_parallel = sharded or tensor_rank == 0  # type: ignore[attr-defined]


class DeepSpeedEngine:
    """An :class:`megads.engine.base.Engine` on DeepSpeed.

    Args:
        module: the model, float32 on the CPU; ``forward(tokens, labels)`` returns the mean loss.
        run: the derived settings.
        groups: the grid's process groups.
        device: where the model goes.
    """

    def __init__(self, module: nn.Module, run: RunConfig, groups: Groups, device: torch.device):
        self.groups = groups
        self.clip_grad = run.optim.clip_grad
        self.config = deepspeed_config(run, groups.grid.world_size)
        self.names = {parameter: name for name, parameter in module.named_parameters()}
        _mark_counted(module, groups.tensor_rank)
        module = module.to(device)
        optimizer = torch.optim.AdamW(
            decay_groups(module, run.optim.weight_decay),
            lr=run.optim.lr,
            betas=(run.optim.adam_beta1, run.optim.adam_beta2),
            eps=run.optim.adam_eps,
            fused=True,
        )
        deepspeed = _import_deepspeed()
        if run.train.dtype == "fp16" and not deepspeed.get_accelerator().is_fp16_supported():
            raise DeviceError(f"DTYPE=fp16: the {device.type} of this host computes no fp16; use DTYPE=bf16 or fp32")
        # DeepSpeed reports memory and op builds with bare prints; a run's log is ours.
        quiet = contextlib.redirect_stdout(io.StringIO())
        with quiet, exported_local_rank(device.index or 0), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.engine, *_ = deepspeed.initialize(
                model=module, optimizer=optimizer, config=self.config, mpu=Mpu(groups), dist_init_required=False
            )
        self.module: nn.Module = self.engine.module
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]

    # Training

    def train_step(self, batches: Sequence[Tensor], lr: float) -> StepResult:
        """Update the weights once; see :class:`megads.engine.base.Engine`."""
        engine = self.engine
        for group in engine.optimizer.param_groups:
            group["lr"] = lr
        self.module.train()
        skipped = engine.skipped_steps
        scale = self.loss_scale
        total = torch.zeros((), device=engine.device)
        plain_norm = None
        for batch in batches:
            loss = engine(batch[:, :-1], batch[:, 1:])
            total += loss.detach()
            engine.backward(loss)
            if self.holds_plain_gradients and engine.is_gradient_accumulation_boundary():
                plain_norm = self._plain_grad_norm()
                if not math.isfinite(plain_norm):
                    self._skip_step()
                    continue
            engine.step()
        loss = self._mean_over_data(total / len(batches))
        norm = plain_norm if plain_norm is not None else engine.get_global_grad_norm()
        return StepResult(loss, float(norm), engine.skipped_steps > skipped, scale)

    def eval_loss(self, batch: Tensor) -> Tensor:
        """Return this rank's mean loss on ``batch``; see :class:`megads.engine.base.Engine`."""
        self.module.eval()
        with torch.no_grad():
            loss: Tensor = self.module(batch[:, :-1], batch[:, 1:])
        return loss.float()

    @property
    def holds_plain_gradients(self) -> bool:
        """Whether the bare torch optimizer runs (ZeRO 0 in fp32), which keeps no norm."""
        return self.engine.optimizer is self.engine.basic_optimizer

    @property
    def loss_scale(self) -> float:
        """The scale of the next backward pass; 1.0 unless fp16."""
        scaler = getattr(self.engine.optimizer, "loss_scaler", None)
        return float(scaler.cur_scale) if scaler is not None else 1.0

    def _plain_grad_norm(self) -> float:
        """Return the norm of the reduced, unclipped gradients, counting each parameter once."""
        counted = [p.grad for p in self.parameters if p.grad is not None and p.tensor_model_parallel]
        norms = torch.stack(torch._foreach_norm(counted))
        square = norms.double().square().sum()
        if self.groups.model is not None:
            dist.all_reduce(square, group=self.groups.model)
        return float(square.sqrt())

    def _skip_step(self) -> None:
        """Leave every weight alone and count on, as the ZeRO optimizers do by themselves."""
        self.engine.zero_grad()
        self.engine.micro_steps += 1
        self.engine.global_steps += 1
        self.engine.skipped_steps += 1

    def _mean_over_data(self, loss: Tensor) -> Tensor:
        if self.groups.data_seq is not None:
            dist.all_reduce(loss, group=self.groups.data_seq)
            loss /= self.groups.data_seq_size
        return loss

    # State

    def states(self) -> Iterator[ParameterState]:
        """Yield every parameter's float32 weight and moments; collective over data x seq."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        self._materialise()
        for parameter in self.parameters:
            if self.holds_plain_gradients:
                state = self.engine.basic_optimizer.state[parameter]
                tensors = {"weight": parameter.data, **{key: state[key] for key in MOMENTS}}
            else:
                tensors = {"weight": safe_get_full_fp32_param(parameter)}
                tensors |= {key: safe_get_full_optimizer_state(parameter, key) for key in MOMENTS}
            shaped = {kind: tensor.detach().view(parameter.shape) for kind, tensor in tensors.items()}
            yield ParameterState(self.names[parameter], parameter, shaped)

    def load(self, read: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Set weight and moments of the parameters in ``read``."""
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        self._materialise()
        for parameter in self.parameters:
            if self.names[parameter] not in read:
                continue
            tensors = {kind: tensor.to(parameter.device) for kind, tensor in read[self.names[parameter]].items()}
            # The working copy first: the master's setter knows nothing of it.
            parameter.data.copy_(tensors["weight"])
            if self.holds_plain_gradients:
                for key in MOMENTS:
                    self.engine.basic_optimizer.state[parameter][key].copy_(tensors[key])
            else:
                safe_set_full_fp32_param(parameter, tensors["weight"])
                for key in MOMENTS:
                    safe_set_full_optimizer_state(parameter, tensors[key], key)

    def scalars(self) -> dict[str, float]:
        """Return the optimizer's step count and, for fp16, the loss scaler's counters."""
        steps = {float(state["step"]) for state in map(self._state, self._flats()) if state}
        values = {"optimizer_step": max(steps, default=0.0), "skipped_steps": float(self.engine.skipped_steps)}
        scaler = getattr(self.engine.optimizer, "loss_scaler", None)
        if scaler is not None and getattr(scaler, "dynamic", False):
            values |= {f"scaler.{key}": float(getattr(scaler, key)) for key in _SCALER_COUNTERS}
        return values

    def load_scalars(self, values: Mapping[str, float]) -> None:
        """Take back what :meth:`scalars` gave."""
        self._materialise()
        for flat in self._flats():
            self._state(flat)["step"].fill_(values["optimizer_step"])
        self.engine.skipped_steps = int(values["skipped_steps"])
        scaler = getattr(self.engine.optimizer, "loss_scaler", None)
        for key, kind in _SCALER_COUNTERS.items():
            if scaler is not None and f"scaler.{key}" in values:
                setattr(scaler, key, kind(values[f"scaler.{key}"]))

    def _flats(self) -> list[Tensor]:
        """Return the tensors the torch optimizer steps: parameters, or ZeRO's flat partitions."""
        return [flat for group in self.engine.basic_optimizer.param_groups for flat in group["params"]]

    def _state(self, flat: Tensor) -> dict[str, Tensor]:
        return self.engine.basic_optimizer.state[flat]

    def _materialise(self) -> None:
        """Make the moments that do not exist before the first step.

        ``_lazy_init_hp_params_optimizer_state`` is not public: it links the fragments of
        each parameter to the flat moments. Without it nothing can be set before a step, and
        DeepSpeed itself links after the first group's first step, when the other groups
        have no moments yet; so it is made to link again.
        """
        for flat in self._flats():
            state = self._state(flat)
            if not state:
                moments = {key: torch.zeros_like(flat, dtype=torch.float32) for key in MOMENTS}
                state.update(step=torch.zeros((), dtype=torch.float32, device=flat.device), **moments)
        link = getattr(self.engine.optimizer, "_lazy_init_hp_params_optimizer_state", None)
        if link is not None:
            self.engine.optimizer._hp_optimizer_states_linked = False
            link()


_SCALER_COUNTERS = {"cur_scale": float, "cur_iter": int, "last_overflow_iter": int, "cur_hysteresis": int}
