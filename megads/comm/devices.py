"""Whether every rank has a device of its own, and of the same vendor as the others: asked before they connect.

A launcher that hides devices from its ranks may give all of a host the same one; each then sees one device and takes
it. And a rank whose mask hides all of them would train on the CPU, and wait for the others on another backend.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from megads.cluster.hosts import this_host
from megads.cluster.ranks import RankInfo
from megads.comm.rendezvous import BLOCK, host_identity
from megads.device import facts
from megads.device.names import MASKS, masks_of
from megads.device.vendor import Vendor
from megads.errors import DeviceError
from megads.text.plural import plural

NAMED = 8
"""More ranks than this are counted, not named."""


@dataclass(frozen=True)
class RankDevice:
    """The device of one rank."""

    host: str  # its name
    boot: str  # tells hosts apart whatever their names
    vendor: str
    identity: str  # tells the host's devices apart; empty where torch has none
    seen: int  # devices that the process sees
    masks: str  # variables that hide devices, with their values


def compare_devices(
    row: Vendor, device: torch.device, info: RankInfo, store: dist.Store, env: Mapping[str, str], *, force: bool = False
) -> None:
    """Refuse ranks that share a device, or that have devices of several vendors. Every rank calls it.

    Raises:
        DeviceError: on every rank, the same.
    """
    if info.world_size == 1:
        return
    mine = RankDevice(
        this_host(), host_identity(), row.name, facts.identity(row, device), row.count(), masks_of(row.name, env)
    )
    store.set(f"device/{info.rank}", json.dumps(asdict(mine)))
    if info.rank == 0:
        blocks = [range(first, min(first + BLOCK, info.world_size)) for first in range(0, info.world_size, BLOCK)]
        found = [text for ranks in blocks for text in store.multi_get([f"device/{rank}" for rank in ranks])]
        store.set("devices", device_problem([RankDevice(**json.loads(text)) for text in found], force=force))
    if problem := store.get("devices").decode():
        raise DeviceError(problem)


def device_problem(devices: Sequence[RankDevice], *, force: bool = False) -> str:
    """Return why ranks cannot run on ``devices``, in rank order; empty where they can.

    ``force``: ranks may share a device, for one who knows that they should.
    """
    vendors = _by([each.vendor for each in devices])
    if len(vendors) > 1:
        least = min(vendors.values(), key=len)
        each = [f"{name} on {_named(ranks)}" for name, ranks in vendors.items()]
        one = devices[least[0]]
        names = dict.fromkeys(name for each in devices for name in MASKS.get(each.vendor, ()))
        hidden = " ".join(names) if "cpu" in vendors else ""
        check = f"check what hides its devices ({hidden}), or" if hidden else "use hosts of one kind, or"
        return (
            f"ranks have devices of different vendors: {', '.join(each)}; rank {least[0]} is on {one.host}; "
            f"{check} name one with MEGADS_DEVICE"
        )
    users = _by([(each.boot, each.identity) if each.identity else None for each in devices])
    shared = next((ranks for key, ranks in users.items() if key is not None and len(ranks) > 1), None)
    if shared is None or force:
        return ""
    one = devices[shared[0]]
    masks = " or ".join(MASKS.get(one.vendor, ())) or "the launcher"
    set_to = f", with {one.masks}" if one.masks else ""
    return (
        f"{_named(shared)} on {one.host} all use device {one.identity}: a process there sees "
        f"{plural(one.seen, f'{one.vendor} device')}{set_to}; show each rank a device of its own ({masks}) or all of "
        "them, or start fewer ranks per host (NGPU_PER_HOST); FORCE=1 starts anyway"
    )


def _by(keys: Sequence[object]) -> dict[object, list[int]]:
    found: dict[object, list[int]] = defaultdict(list)
    for rank, key in enumerate(keys):
        found[key].append(rank)
    return found


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:NAMED]))
    more = f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else ""
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {shown}{more}"
