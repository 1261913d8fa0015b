"""ZeRO 3: parameters that are partitioned from the moment they are made."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from megads.cluster.ranks import exported_local_rank
from megads.comm.groups import GROUPS, Groups, join
from megads.comm.timeout import group_timeout_s
from megads.config.deepspeed.dictionary import deepspeed_config, effective_zero_stage
from megads.config.schema import RunConfig
from megads.engine.deepspeed.package import import_deepspeed


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
            mpu=_Sizes(groups),
            zero_param_parallel_group=deepspeed.utils.groups._ZERO_PARAM_INTRA_PARALLEL_GROUP,
        )
    with init:
        yield


class _Sizes:
    """What DeepSpeed's config asks of an mpu: how many ranks share a batch."""

    def __init__(self, groups: Groups):
        self.groups = groups

    def get_data_parallel_world_size(self) -> int:
        return self.groups.data_seq_size


def _partitioner(deepspeed: Any) -> Any:
    class Partitioner(deepspeed.zero.Init):
        """Partitions without sending: values made here are thrown away, so none need agree."""

        def _zero_init_param(self, param: nn.Parameter) -> None:
            param.data = param.data.to(device=self.local_device, dtype=self.dtype)
            self._convert_to_deepspeed_param(param)
            param.partition()  # type: ignore[attr-defined]

    return Partitioner


def set_second_partition_group(run: RunConfig, groups: Groups) -> None:
    """Tell DeepSpeed the ranks that hold a second copy of the weights together (ZeRO++ hpZ, arXiv 2306.10209).

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


def forget_second_partitions(module: nn.Module) -> None:
    """Have the second copies of the weights made again from the first ones, which were changed."""
    for parameter in module.parameters():
        if hasattr(parameter, "ds_secondary_tensor"):
            parameter.ds_secondary_tensor = None
