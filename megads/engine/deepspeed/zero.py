"""ZeRO: parameters that are partitioned from the moment they are made, and less traffic and memory than DeepSpeed's.

Measured on 0.19.8. ZeRO 1 is one reduce-scatter of the gradients and one all-gather of the
weights a step (arXiv 1910.02054, section 7); DeepSpeed reduces every gradient to every rank,
which sends twice as much, or to one owner after another. In float32 the master copy of the
weights repeats what the weights already are. What is changed here is changed on the objects
of one engine, never on DeepSpeed's classes.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import megads.timing.collectives as dist
from megads.cluster.ranks import exported_local_rank
from megads.comm.groups import GROUPS, Groups, group_timeout_s, join
from megads.config.deepspeed.dictionary import deepspeed_config, effective_zero_stage
from megads.config.schema import RunConfig
from megads.engine.deepspeed.package import Mpu, import_deepspeed
from megads.engine.partial_gradients import PartialGradients
from megads.parallel.tensor import Partition


@contextlib.contextmanager
def partitioned(run: RunConfig, groups: Groups, device: torch.device) -> Iterator[None]:
    """Under ZeRO 3, partition every parameter over data x seq as soon as its module is made.

    No rank ever holds more than its share of the model and one module. The values of
    parameters made here are lost: ``megads.models.build`` fills the partitions. With other
    stages this does nothing.
    """
    if effective_zero_stage(run) < 3:
        yield
        return
    deepspeed = import_deepspeed()
    set_second_partition_group(run, groups)
    with contextlib.redirect_stdout(io.StringIO()), exported_local_rank(device.index or 0):
        # Without this it takes the world to be one rank.
        backend = deepspeed.get_accelerator().communication_backend_name()
        deepspeed.comm.init_distributed(dist_backend=backend, dist_init_required=False)
        config = deepspeed_config(run, groups.grid.world_size)
        init = _partitioner(deepspeed)(
            data_parallel_group=groups.process_group("data_seq"),
            config_dict_or_path=config,
            tensor_overrides=(),
            mpu=Mpu(groups),
            zero_param_parallel_group=deepspeed.utils.groups._ZERO_PARAM_INTRA_PARALLEL_GROUP,
        )
    with init:
        yield


def _partitioner(deepspeed: Any) -> Any:
    class Partitioner(deepspeed.zero.Init):
        """Partitions without sending: values made here are thrown away, so none need agree."""

        def _zero_init_param(self, param: nn.Parameter) -> None:
            param.data = param.data.to(device=self.local_device, dtype=self.dtype)
            self._convert_to_deepspeed_param(param)
            param.partition()  # type: ignore[attr-defined]
            param.whole_shape = param.ds_shape  # type: ignore[attr-defined]

    return Partitioner


def find_partition(weight: Any) -> Partition | None:
    """Return what this rank holds of a parameter that :func:`partitioned` has partitioned."""
    if not hasattr(weight, "ds_tensor"):
        return None
    first = dist.get_rank(weight.ds_process_group) * weight.ds_tensor.numel()
    return Partition(weight.ds_shape, weight.ds_tensor, first)


def set_second_partition_group(run: RunConfig, groups: Groups) -> None:
    """Give DeepSpeed the group that holds a second copy of the weights together (ZeRO++ hpZ, arXiv 2306.10209).

    Its own groups are of consecutive global ranks, which hold different weights when there
    is tensor parallelism, and every rank makes all of them. Ours are of consecutive ranks
    of data x seq.
    """
    from deepspeed.utils import groups as theirs

    size = run.deepspeed.hpz_partition_size
    theirs._ZERO_PARAM_INTRA_PARALLEL_GROUP = None
    if size > 1 and effective_zero_stage(run) == 3:
        lines = groups.grid.groups(*GROUPS["data_seq"])
        everyone = [line[i : i + size] for line in lines for i in range(0, len(line), size)]
        mine = next(ranks for ranks in everyone if groups.rank in ranks)
        theirs._ZERO_PARAM_INTRA_PARALLEL_GROUP = join(mine, lambda: everyone, group_timeout_s(run.launch.timeout_s))


def changes_before_gathers(optimizer: Any) -> Callable[[], None]:
    """Return what is called after weights were changed: all-gathers in a queue of their own wait for it.

    They begin as soon as the next pass asks, and with ``overlap_comm`` DeepSpeed 0.19.8 lets them wait for
    nothing: they are right only where the host has waited for the update in between.
    """
    offload = getattr(optimizer, "parameter_offload", None)  # ZeRO 3
    # An attribute that is missing in another version must not pass unseen.
    stream = offload._DeepSpeedZeRoOffload__allgather_stream if offload is not None else None
    if stream is None:  # also on a CPU
        return lambda: None
    from deepspeed.accelerator import get_accelerator

    return lambda: stream.wait_stream(get_accelerator().current_stream())


def forget_second_partitions(module: nn.Module) -> None:
    """Have the second copies of the weights made again from the first ones, which were changed."""
    for parameter in module.parameters():
        if hasattr(parameter, "ds_secondary_tensor"):
            parameter.ds_secondary_tensor = None


def fit_to(module: nn.Module, config: dict[str, Any]) -> None:
    """Have DeepSpeed's buckets, and what ZeRO 3 gathers together, fit ``module``."""
    fit_bucket(config, module)
    gather_tiled_whole(module)


def gather_tiled_whole(module: nn.Module) -> None:
    """Under ZeRO 3, have an MLP that works in tiles gathered at once: its own backward pass uses all its parameters."""
    from deepspeed.utils import set_z3_leaf_module

    for layer in module.modules():
        if getattr(layer, "tiles", 1) > 1:
            set_z3_leaf_module(layer, True)


def fit_bucket(config: dict[str, Any], module: nn.Module) -> None:
    """Have DeepSpeed allocate no larger bucket than all gradients fill: it takes one again in every backward pass."""
    count = sum(getattr(each, "ds_numel", each.numel()) for each in module.parameters())
    zero = config.get("zero_optimization", {})
    if "reduce_bucket_size" in zero:
        zero["reduce_bucket_size"] = min(int(zero["reduce_bucket_size"]), count)


def keep_gathered(module: nn.Module) -> None:
    """Under ZeRO 3, have a tied embedding gathered for the output layer, which is another module's."""
    embedding = getattr(module, "embedding", None)
    if getattr(module, "head", None) is None and hasattr(getattr(embedding, "weight", None), "ds_id"):
        from deepspeed.runtime.zero import register_external_parameter

        register_external_parameter(module, embedding.weight)  # type: ignore[union-attr]


def share_buffers(optimizer: Any) -> None:
    """Keep one copy where DeepSpeed keeps two: of float32 weights, and of the gradients that a rank owns."""
    kind = type(optimizer).__name__
    if kind == "DeepSpeedZeroOptimizer" and not optimizer.cpu_offload:
        _share_flat(optimizer)
    elif kind == "DeepSpeedZeroOptimizer_Stage3" and not optimizer.offload_optimizer:
        _share_partitioned(optimizer)


def _share_flat(optimizer: Any) -> None:
    for i, master in enumerate(optimizer.single_partition_of_fp32_groups):
        rank = dist.get_rank(optimizer.real_dp_process_group[i])
        _share(master, optimizer.parallel_partitioned_bit16_groups[i][rank])
    optimizer._link_all_hp_params()
    if optimizer.gradient_accumulation_dtype == torch.float32:
        # The buffer that DeepSpeed uses where the model is in half precision: it is what ``step`` steps with.
        optimizer._use_compact_grad_partition_buffer = lambda group: True


def _share_partitioned(optimizer: Any) -> None:
    for master, weights in zip(
        optimizer.fp32_partitioned_groups_flat, optimizer.fp16_partitioned_groups_flat, strict=True
    ):
        if weights is not None:
            _share(master, weights)
    gradients = optimizer.grad_partitions_flat_buffer
    if gradients.dtype != torch.float32:
        return
    ends = list(itertools.accumulate(optimizer.fp16_partitioned_groups_flat_numel, initial=0))

    def step_with_the_buffer(group: int) -> None:
        optimizer.fp32_partitioned_groups_flat[group].grad = gradients[ends[group] : ends[group + 1]]
        optimizer.averaged_gradients[group] = None

    optimizer._prepare_fp32_grad_for_sub_group = step_with_the_buffer


def _share(master: Tensor, weights: Tensor) -> None:
    if weights.dtype == master.dtype and weights.device == master.device:
        master.data = weights.data


def reduce_once(engine: Any, groups: Groups, partial: PartialGradients) -> None:
    """Under ZeRO 1, reduce each gradient once a step, to its owner only, by one call per parameter group.

    There, and under ZeRO 0, the ``partial`` gradients are summed before. Under ZeRO 2 and 3 each micro-batch's are
    reduced as they come.
    """
    optimizer = engine.optimizer
    kind = type(optimizer).__name__
    if optimizer is engine.basic_optimizer:
        partial.sum_before(engine, "buffered_allreduce_fallback", lambda weight: weight.grad)
    elif kind == "BF16_Optimizer":
        _Bf16Reducer(optimizer, groups, engine.communication_data_type).attach(engine)
        partial.sum_before(engine, "buffered_allreduce_fallback", lambda weight: weight._hp_grad)
    elif kind == "DeepSpeedZeroOptimizer" and not (
        optimizer.partition_gradients
        or optimizer.overlap_comm
        or optimizer.cpu_offload
        or not optimizer.reduce_scatter
        or optimizer.round_robin_gradients
    ):
        reducer = _FlatReducer(optimizer)
        reducer.attach()
        partial.sum_before(optimizer, "reduce_gradients", lambda weight: reducer.views[id(weight)])


def _reduce_scatter(flat: Tensor, mine: Tensor, group: dist.ProcessGroup, dtype: torch.dtype) -> None:
    """Average ``flat`` over the group into ``mine``, this rank's part of it."""
    size = dist.get_world_size(group)
    if size > 1:
        wire = flat if dtype == flat.dtype else flat.to(dtype)
        rank = dist.get_rank(group)
        out = mine if wire is flat else wire[rank * mine.numel() : (rank + 1) * mine.numel()]
        dist.reduce_scatter_tensor(out, wire, group=group)
        if out is not mine:
            mine.copy_(out)
        mine.div_(size)


class _FlatReducer:
    """Gradients of a ``DeepSpeedZeroOptimizer`` (stage 1) in one buffer per parameter group.

    The buffer is laid out as the weights are, so that a rank's part of it is what the rank
    owns. A parameter's gradient is a view of it: autograd (float32) or DeepSpeed (half
    precision, into ``grad_accum``) adds to it in place.
    """

    def __init__(self, optimizer: Any):
        self.optimizer = optimizer
        self.flats: list[Tensor] = []
        self.views: dict[int, Tensor] = {}
        for i, params in enumerate(optimizer.round_robin_bit16_groups):
            weights = optimizer.bit16_groups_flat[i]
            flat = torch.zeros(weights.numel(), dtype=optimizer.gradient_accumulation_dtype, device=weights.device)
            for parameter, offset in zip(params, optimizer.round_robin_bit16_offsets[i], strict=True):
                self.views[id(parameter)] = flat[offset : offset + parameter.numel()].view(parameter.shape)
            self.flats.append(flat)

    def attach(self) -> None:
        """Take the place of the optimizer's own methods."""
        self.optimizer.process_gradients = self.take
        self.optimizer.reduce_gradients = self.reduce

    def take(self, parameter: Any, group: int) -> None:
        """Have a gradient that autograd has just added to in the buffer."""
        optimizer, view = self.optimizer, self.views[id(parameter)]
        if optimizer.use_grad_accum_attribute:
            if parameter.grad_accum is None:
                view.copy_(parameter.grad)
                parameter.grad_accum = view
            else:
                view.add_(parameter.grad)
            parameter.grad = None
        elif parameter.grad is not None and parameter.grad.data_ptr() != view.data_ptr():
            view.copy_(parameter.grad)
            parameter.grad = view

    def reduce(self, pipeline_parallel: bool = False) -> None:
        """Reduce every gradient to its owner, as views of this rank's part, where ``step`` looks for them."""
        optimizer = self.optimizer
        for i, flat in enumerate(self.flats):
            for parameter in optimizer.bit16_groups[i]:
                if optimizer.get_gradient_for_reduction(parameter) is None:
                    self.views[id(parameter)].zero_()
            group, size = optimizer.real_dp_process_group[i], int(optimizer.partition_size[i])
            first = dist.get_rank(group) * size
            mine = flat[first : first + size]
            _reduce_scatter(flat, mine, group, optimizer.communication_data_type)
            padding = optimizer.groups_padding[i]
            mine[size - padding :].zero_()
            found = optimizer._build_compact_grad_partition_buffer(i)
            found.flat_partition = mine
            found.move_flat_partition(mine.device)
            optimizer.averaged_gradients[i] = found


class _Bf16Reducer:
    """Gradients of a ``BF16_Optimizer``, which already lie in one float32 buffer per parameter group.

    After the reduction only this rank's part is whole, so the norm is that of the parts,
    summed over the world, and clipping changes the part alone.
    """

    def __init__(self, optimizer: Any, groups: Groups, dtype: torch.dtype):
        self.optimizer, self.groups, self.dtype = optimizer, groups, dtype
        self.owned = [list(self._owned(i)) for i in range(len(optimizer.bf16_groups))]

    def attach(self, engine: Any) -> None:
        """Take the place of the engine's and the optimizer's own methods."""
        engine.buffered_allreduce_fallback = self.reduce
        self.optimizer.get_grads_for_norm = self.parts
        self.optimizer.mpu = _NormOverWorld(self.optimizer.mpu, self.groups)

    def reduce(self, grads: Any = None, elements_per_buffer: int = 0) -> None:
        """Reduce every gradient to its owner."""
        optimizer = self.optimizer
        for i, flat in enumerate(optimizer.fp32_groups_gradients_flat):
            mine = optimizer.fp32_groups_gradient_flat_partition[i]
            _reduce_scatter(flat, mine, optimizer.real_dp_process_group[i], self.dtype)

    def parts(self, for_clipping: bool = False) -> Any:
        """Return this rank's part: of every parameter that counts here, or all of it for clipping."""
        if for_clipping:
            return list(self.optimizer.fp32_groups_gradient_flat_partition)
        counted = [part for owned in self.owned for p, part in owned if p.tensor_model_parallel]
        return counted or [torch.zeros(1, device=self.optimizer.fp32_groups_gradients_flat[0].device)], {}

    def _owned(self, i: int) -> Any:
        """Yield each parameter of group ``i`` that this rank owns some of, and its gradient there."""
        optimizer, first = self.optimizer, 0
        mine = optimizer.fp32_groups_gradient_flat_partition[i]
        start = dist.get_rank(optimizer.real_dp_process_group[i]) * mine.numel()
        for parameter in optimizer.bf16_groups[i]:
            last = first + parameter.numel()
            left, right = max(first, start), min(last, start + mine.numel())
            if left < right:
                yield parameter, mine[left - start : right - start]
            first = last


class _NormOverWorld:
    """An mpu whose norms are summed over every rank: those of data x seq hold different gradients."""

    def __init__(self, mpu: Any, groups: Groups):
        self.mpu, self.groups = mpu, groups

    def __getattr__(self, name: str) -> Any:
        return getattr(self.mpu, name)

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        """Return the whole world."""
        return self.groups.process_group("world")
