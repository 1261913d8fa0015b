"""DeepSpeed's communication, as sections of the step's time; see ``megads.timing.sections``.

DeepSpeed sends everything through one object, which hands it to ``torch.distributed``: its
collectives are wrapped there. What it sends in parallel to the computation, in a queue of its own on
a device, costs time only where the computation waits for it, and those places are wrapped too.
"""

from __future__ import annotations

from typing import Any

from megads.timing.collectives import timed
from megads.timing.sections import COMMUNICATION, in_section

COLLECTIVES = (
    *("all_reduce", "inference_all_reduce", "all_reduce_coalesced", "reduce", "broadcast"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
    *("all_gather", "all_gather_into_tensor", "all_gather_base", "all_gather_coalesced"),
    *("send", "recv", "gather", "scatter", "barrier"),
)
"""Methods of DeepSpeed's backends that a step may wait in."""


def time_communication(engine: Any) -> None:
    """Count DeepSpeed's collectives, and its waits for those that overlap with computation, as communication."""
    _time_backend()
    optimizer = engine.optimizer
    if getattr(optimizer, "overlap_comm", False):
        _wrap(optimizer, "overlapping_partition_gradients_reduce_epilogue")
    offload = getattr(optimizer, "parameter_offload", None)  # ZeRO 3
    if offload is not None:
        _wrap(offload.get_param_coordinator(), "fetch_sub_module")


def _time_backend() -> None:
    from deepspeed.comm import comm

    backend = comm.cdb
    # One object serves every engine of the process.
    if backend is None or getattr(backend, "megads_times", False):
        return
    for name in COLLECTIVES:
        if hasattr(backend, name):
            setattr(backend, name, timed(getattr(backend, name)))
    backend.megads_times = True


def _wrap(owner: Any, name: str) -> None:
    setattr(owner, name, in_section(COMMUNICATION)(getattr(owner, name)))
