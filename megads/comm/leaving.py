"""How a rank that has done its work leaves the others: together, and never later than a limit.

A rank that ends while a proxy thread of NCCL or oneCCL still sends for it breaks the last collective of its peers.
A rank that fails does none of this: it leaves at once, so that its reason comes before the others' time-outs.
"""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist

LIMIT_S = 10.0
"""For all ranks to end their communication; what is done is saved by then."""


def disconnect(limit_s: float = LIMIT_S) -> str:
    """Wait for the device and for the other ranks, and destroy all process groups. Every rank calls it.

    Returns:
        Why that was given up after ``limit_s``, or at an error; empty: it is done, or there is no group.
    """
    if not dist.is_initialized():
        return ""
    problems: list[str] = []

    def end() -> None:
        try:
            world = dist.group.WORLD
            device = None if world is None else world.bound_device_id
            if device is not None and device.type != "cpu":
                torch.get_device_module(device.type).synchronize(device)
            dist.barrier()
            dist.destroy_process_group()
        except (RuntimeError, ValueError) as error:  # a peer is gone, or a device
            problems.append(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")

    # In a thread of its own: a collective that waits for a rank that is gone cannot be ended from outside.
    thread = threading.Thread(target=end, name="megads-disconnect", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        return f"the other ranks did not end their communication in {limit_s:g} s"
    return problems[0] if problems else ""
