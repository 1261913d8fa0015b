"""A save in the background copies the device's state to page-locked memory, and the host does not wait for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from megads.checkpoint.save import Saver, Snapshot
from tests.checkpoint.test_save import ALONE, check_whole, snapshot
from tests.simgpu.counting import counting
from tests.simgpu.device import DEVICE, run_on_device


def on_device(plain: Snapshot) -> Snapshot:
    shards = [
        replace(shard, tensors={kind: tensor.to(DEVICE) for kind, tensor in shard.tensors.items()})
        for shard in plain.shards
    ]
    return replace(plain, shards=shards)


def _copies_wait_for_nothing(folder: str) -> None:
    saver = Saver(Path(folder), ALONE)
    first, second = on_device(snapshot(ALONE, 1)), on_device(snapshot(ALONE, 2, times=3))
    saver.reserve(first.shards)
    memory = saver.copy.bytes
    for taken, times in ((first, 1), (second, 3)):
        with counting() as found:
            saver.start(taken)
            for shard in taken.shards:  # as the next step does
                for tensor in shard.tensors.values():
                    tensor.zero_()
            path = saver.finish()
        check_whole(path, times)
        assert found.kinds().pop("download_pinned") == 6
        # In the thread that writes, and nowhere else.
        assert {(event.kind, event.caller.partition(":")[0]) for event in found.waits} <= {
            ("synchronize", "megads/checkpoint/save.py")
        }, "\n".join(map(str, found.events))
    assert saver.copy.bytes == memory


def test_copies_of_a_save_in_the_background_wait_for_nothing(tmp_path):
    run_on_device(1, _copies_wait_for_nothing, str(tmp_path))


def _goes_on_without_locked_memory(folder: str) -> None:
    saver, empty = Saver(Path(folder), ALONE), torch.empty

    def refuse(*sizes: object, pin_memory: bool = False, **more: object) -> torch.Tensor:
        if pin_memory:
            raise RuntimeError("out of locked memory\nwith a second line")
        return empty(*sizes, **more)

    torch.empty = refuse  # type: ignore[assignment]
    try:
        with counting() as found:
            saver.start(on_device(snapshot(ALONE, 1)))
            path = saver.finish()
    finally:
        torch.empty = empty
    assert saver.copy.problem == "out of locked memory"
    assert "download_pinned" not in found.kinds()
    check_whole(path)


def test_without_page_locked_memory_copies_wait_and_it_is_known(tmp_path):
    run_on_device(1, _goes_on_without_locked_memory, str(tmp_path))
