"""When a run saves, what of it, and how it continues when it cannot."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from megads.checkpoint import save as save_module
from megads.checkpoint.format.folders import list_checkpoints
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.format.shard_layout import ShardLayout
from megads.checkpoint.owned_shard import OwnedShard
from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.engine.base import StepResult
from megads.errors import CheckpointError
from megads.monitor.metrics import MetricsFile, read_metrics
from megads.train.fault.stop import Deadline, StopRequest
from megads.train.loop import Loop
from megads.train.setup import Training
from tests.data.factory import write_dataset
from tests.disks import file_limit, small_disk
from tests.ranks import groups_of, run_ranks

ALONE = Groups(Grid(), 0)
ITERATIONS = 8
OPENED: list[MetricsFile] = []
KINDS = ("weight", "exp_avg", "exp_avg_sq")


@pytest.fixture(autouse=True)
def _as_before():
    """A run listens to signals and writes a file; the process of the tests continues as it was."""
    numbers = (signal.SIGUSR1, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
    while OPENED:
        OPENED.pop().close()


class Engine:
    """One parameter, shared by the data-parallel ranks, that a step sets to the number of steps."""

    def __init__(self, groups: Any, size: int = 8):
        self.module, self.groups, self.steps = nn.Module(), groups, 0
        share = size // groups.data_size
        cut = ShardLayout((size,))
        self.tensors = {kind: torch.zeros(share) for kind in KINDS}
        self.piece = OwnedShard("final_norm.weight", cut, groups.data_rank * share, self.tensors)
        self.at_step: dict[int, Any] = {}  # what else happens

    def prepare(self, batch: torch.Tensor) -> torch.Tensor:
        return batch

    def train_step(self, batches: list[torch.Tensor], lr: float, **rates: object) -> StepResult:
        self.steps += 1
        for i, tensor in enumerate(self.tensors.values()):
            tensor.fill_(self.steps + 100.0 * i)
        self.at_step.get(self.steps, lambda: None)()
        return StepResult(torch.tensor(1.0), 1.0, False, 1.0)

    def eval_scores(self, batches: list[Any]) -> torch.Tensor:
        rows = sum(len(batch.tokens) for batch in batches) * self.groups.data_size
        return torch.full((rows, 2), -float(self.steps), dtype=torch.float64)

    @property
    def state(self) -> Any:
        return self

    def owned_shards(self) -> Any:
        yield self.piece

    def sync_from_masters(self) -> None:
        pass

    def whole_states(self) -> Any:
        return iter(())

    def replicated(self) -> Any:
        return iter(())

    def calls(self) -> list[Any]:
        return []

    def before_updates(self, look: Any) -> Any:
        return lambda: None

    def load_whole_states(self, state_of: Any) -> None:
        pass

    def reset_optimizer(self) -> None:
        for kind in ("exp_avg", "exp_avg_sq"):
            if kind in getattr(self, "tensors", {}):
                self.tensors[kind].zero_()

    def scalars(self) -> dict[str, float]:
        return {"optimizer_step": float(self.steps)}

    def load_scalars(self, values: Any) -> None:
        self.steps = int(values["optimizer_step"])


def loop_of(folder: Path, size: int = 8, **settings: str) -> Loop:
    """Return the loop of a run in ``folder`` on the ranks that call."""
    from megads.data.datasets import build_splits
    from megads.data.sources.file_list import Shard
    from megads.device.vendor import vendor
    from tests.parity.order import settings as run_of

    ranks = dist.get_world_size() if dist.is_initialized() else 1
    groups, device = groups_of(data=ranks) if ranks > 1 else ALONE, torch.device("cpu")
    folder.mkdir(exist_ok=True)
    data = folder / "data"
    data.mkdir(exist_ok=True)
    if groups.rank == 0:
        write_dataset(data, [50] * 40)
    if ranks > 1:
        dist.barrier()
    asked = {
        "train.train_iters": str(ITERATIONS),
        "train.rampup_batch_size": "",
        "train.skip_iterations": "",
        "checkpoint.save_interval": "2",
        **settings,
    }
    run = run_of({"data": ranks}, 1, 0, folder / "cache", **asked)
    splits = build_splits(run, [Shard(1.0, str(data / "data"), "a")])
    row = vendor({"MEGADS_DEVICE": "cpu"})
    training = Training(run, folder, groups, row, device, Engine(groups, size), splits, data="d1")  # type: ignore[arg-type]
    training.parameters = {"final_norm.weight": ShardLayout((size,))}
    stop = StopRequest(folder, groups, device, in_place=False, deadline=Deadline(0.0, 1.0))
    metrics = None
    if groups.rank == 0:
        metrics = MetricsFile(folder / "metrics.jsonl")
        OPENED.append(metrics)
    return loop_on(training, stop, metrics)


def loop_on(training: Training, stop: StopRequest, metrics: MetricsFile | None) -> Loop:
    loop = Loop(training, stop, metrics)
    loop.probes.is_first = False  # the engine here has no memory to look at
    return loop


def saved(folder: Path) -> list[int]:
    return [int(path.name[5:]) for path in list_checkpoints(folder / "checkpoints")]


def check_content(folder: Path) -> None:
    """Every checkpoint holds the state of its own step, not of a later one."""
    for path in list_checkpoints(folder / "checkpoints"):
        with Reader(path) as reader:
            step = reader.manifest.iteration
            for i, kind in enumerate(reader.manifest.kinds):
                assert set(reader.whole("final_norm.weight", kind).tolist()) == {step + 100.0 * i}, path
            assert reader.manifest.progress["iteration"] == step


@pytest.mark.parametrize("background", ["false", "true"])
def test_the_deadline_hears_that_a_save_in_the_background_begins_with_the_next_step(tmp_path, background):
    loop = loop_of(tmp_path, **{"checkpoint.in_background": background, "checkpoint.save_interval": "3"})
    asked, agreed = {}, loop.stop.agreed

    def note(**due):
        if due.get("step", True):
            asked[loop.training.progress.iteration] = due["save"]
        return agreed(**due)

    loop.stop.agreed = note
    loop.run()
    assert [step for step, save in asked.items() if save] == ([2, 5, 8] if background == "true" else [])


@pytest.mark.parametrize("background", ["false", "true"])
def test_a_run_saves_at_every_interval_and_tells_how_long_it_took(tmp_path, background, caplog):
    caplog.set_level(logging.INFO, logger="megads")
    loop = loop_of(tmp_path, **{"checkpoint.in_background": background})
    outcome = loop.run()
    assert outcome.exit_code == 0
    assert saved(tmp_path) == [2, 4, 6, 8]
    check_content(tmp_path)
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "save_s" in row]
    assert [row["iteration"] for row in rows] == [2, 4, 6, 8]
    assert all(row["save_pause_s"] > 0 and row["save_s"] > 0 for row in rows)
    assert loop.stop.deadline.measured_save_s == max(row["save_s"] for row in rows)
    stood_still = [text for text in caplog.messages if "training paused" in text]
    assert len(stood_still) == (3 if background == "true" else 0)
    assert any("of host memory per rank for the copy" in text for text in caplog.messages) == (background == "true")


def test_what_goes_into_a_checkpoint(tmp_path):
    loop_of(tmp_path, **{"checkpoint.save_interval": "0"}).run()
    with Reader(list_checkpoints(tmp_path / "checkpoints")[0]) as reader:
        manifest = reader.manifest
    assert not manifest.has_generators
    assert manifest.kinds == KINDS
    assert manifest.layout == {"pipe": 1, "data": 1, "seq": 1, "tensor": 1, "zero_stage": 1}
    assert set(manifest.about) == {"megads", "torch", "deepspeed", "data", "device", "engine", "function"}
    assert manifest.about["data"] == "d1"
    assert manifest.model["vocab_size"] == 100
    assert manifest.settings["train"]["train_iters"] == ITERATIONS
    assert manifest.scalars == {"optimizer_step": float(ITERATIONS)}
    assert manifest.progress["consumed_samples"] == 16 * ITERATIONS


def test_weights_only(tmp_path):
    left_out = {"checkpoint.save_optim": "false", "checkpoint.in_background": "true"}
    loop = loop_of(tmp_path, **left_out)
    loop.run()
    assert loop.saving.saver.copy.bytes == 4 * 8
    check_content(tmp_path)
    with Reader(list_checkpoints(tmp_path / "checkpoints")[0]) as reader:
        assert reader.manifest.kinds == ("weight",)
        assert reader.manifest.scalars == {}


def _ranks_that_write_unequally_long(folder: Path) -> None:
    """Rank 1 writes for as long as three steps take; nobody waits for it, and all complete the save together."""
    loop = loop_of(folder, **{"checkpoint.in_background": "true", "checkpoint.save_interval": "3"})
    engine, write_file, may_write = loop.training.engine, save_module.write_file, threading.Event()
    rank, seen = loop.training.groups.rank, []

    def slow(path: Path, entries: Any) -> Any:
        assert rank == 0 or "0000003" not in str(path) or may_write.wait(60)
        return write_file(path, entries)

    engine.at_step[4] = lambda: (seen.append(saved(folder)), dist.barrier())
    engine.at_step[5] = lambda: (
        seen.append(saved(folder)),
        may_write.set(),
        loop.saving.saver._background.thread.join(),
    )
    engine.at_step[6] = lambda: (seen.append(saved(folder)), dist.barrier())
    save_module.write_file = slow
    try:
        loop.run()
    finally:
        save_module.write_file = write_file
    assert seen == [[], [], [3]]
    assert saved(folder) == [3, 6, 8]
    check_content(folder)


@pytest.mark.dist
def test_ranks_complete_a_save_at_the_same_step_once_all_have_written(tmp_path):
    run_ranks(2, _ranks_that_write_unequally_long, tmp_path)


def wait_for(path: Path) -> None:
    end = time.monotonic() + 50
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.01)


def _written(loop: Loop) -> None:
    """Wait until the thread that writes has ended."""
    if writer := loop.saving.saver._background:
        writer.thread.join()


def _next_save_waits(folder: Path) -> None:
    loop = loop_of(folder, **{"checkpoint.in_background": "true"})
    write_file, rank = save_module.write_file, loop.training.groups.rank
    finish, waits = loop.saving.saver.finish, folder / "waits"

    def slow(path: Path, entries: Any) -> Any:
        if rank == 1 and "0000002" in str(path):
            wait_for(waits)  # rank 0 comes to its next save
            time.sleep(0.3)
        return write_file(path, entries)

    def told(*state: int) -> Path:
        if rank == 0:
            waits.touch()
        return finish(*state)

    save_module.write_file, loop.saving.saver.finish = slow, told
    try:
        loop.run()
    finally:
        save_module.write_file = write_file
    assert saved(folder) == [2, 4, 6, 8]
    check_content(folder)
    if rank == 0:
        row = next(row for row in read_metrics(folder / "metrics.jsonl") if "save_s" in row)
        assert row["save_s"] >= 0.3
        assert row["save_pause_s"] >= 0.3


@pytest.mark.dist
def test_at_most_one_save_is_written_at_a_time(tmp_path):
    run_ranks(2, _next_save_waits, tmp_path)


# When it cannot be saved


class Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _disk_is_full_for_a_while(folder: Path, background: str) -> None:
    """A file fills the disk during steps 3 and 4."""
    # 2 x 96 KiB a rank, of 1 MiB.
    loop = loop_of(folder / "run", 2 * 8192, **{"checkpoint.in_background": background, "checkpoint.keep": "2"})
    rank, filler, told = loop.training.groups.rank, folder / "filler", Errors()
    checkpoints = folder / "run" / "checkpoints"

    def written() -> None:
        if background == "true":
            loop.saving.saver._background.thread.join()
        dist.barrier()

    def fill() -> None:
        written()
        if rank == 0:
            free = os.statvfs(folder)
            filler.write_bytes(b"x" * (free.f_bavail * free.f_bsize - 100_000))
        dist.barrier()

    def look_and_empty() -> None:
        # Rank 0 has told by now; the step before saved, or began to.
        dist.barrier()
        seen.append((saved(folder / "run"), sorted(path.name for path in checkpoints.glob("*.tmp"))))
        dist.barrier()
        if rank == 0:
            filler.unlink()
        dist.barrier()

    seen: list[Any] = []
    engine = loop.training.engine
    engine.at_step[3] = fill
    engine.at_step[5] = written
    engine.at_step[6] = look_and_empty
    logging.getLogger("megads").addHandler(told)
    try:
        outcome = loop.run()
    finally:
        logging.getLogger("megads").removeHandler(told)
    assert outcome.exit_code == 0
    assert seen == [([2], [])]
    dist.barrier()  # rank 0 removes old ones when all know that the new one is there
    assert saved(folder / "run") == [6, 8]
    check_content(folder / "run")
    if rank == 0:
        assert len(told.lines) == 1, told.lines
        assert "iter_0000004.tmp: No space left on device; older checkpoints are unchanged; training" in told.lines[0]
        assert told.lines[0].endswith("free some space before; 1 more in a row may fail")
        rows = [row["iteration"] for row in read_metrics(folder / "run" / "metrics.jsonl") if "save_s" in row]
        assert rows == [2, 6, 8]
    dist.barrier()


@pytest.mark.dist
@pytest.mark.parametrize("background", ["false", "true"])
def test_a_run_goes_on_while_its_disk_is_full(tmp_path, background):
    with small_disk(tmp_path / "disk", 1024) as disk:
        run_ranks(2, _disk_is_full_for_a_while, disk, background)


@pytest.mark.parametrize("background", ["false", "true"])
@pytest.mark.parametrize(("allowed", "reached"), [(0, 2), (1, 4), (2, 6)])
def test_too_many_failures_in_a_row_end_the_run(tmp_path, monkeypatch, background, allowed, reached):
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    more = {"checkpoint.in_background": background, "checkpoint.failed_saves": str(allowed)}
    loop = loop_of(tmp_path, 1 << 16, **more)
    # The last save of the run would report a thread that is slow to fail in other words.
    loop.training.engine.at_step[7] = lambda: _written(loop)
    with file_limit(200_000), pytest.raises(CheckpointError) as told:
        loop.run()
    # In the background it is known a step later, or when the next one is due.
    assert reached <= loop.training.progress.iteration <= reached + (2 if background == "true" else 0)
    assert f"{allowed + 1} saves in a row failed, MAX_FAILED_SAVES={allowed} may; free some space" in str(told.value)
    assert os.listdir(tmp_path / "checkpoints") == []


def test_only_failures_in_a_row_count(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loop = loop_of(tmp_path, 1 << 16, **{"checkpoint.failed_saves": "1"})
    limits = [file_limit(200_000) for _ in range(2)]
    for step, limit in zip((2, 6), limits, strict=True):
        loop.training.engine.at_step[step] = limit.__enter__
        loop.training.engine.at_step[step + 1] = lambda limit=limit: limit.__exit__(None, None, None)
    assert loop.run().exit_code == 0
    assert saved(tmp_path) == [4, 8]


@pytest.mark.parametrize("background", ["false", "true"])
def test_the_last_save_must_succeed(tmp_path, monkeypatch, background):
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    more = {"checkpoint.in_background": background, "checkpoint.failed_saves": "9", "checkpoint.save_interval": "3"}
    loop = loop_of(tmp_path, 1 << 16, **more)
    soft = []

    def fill() -> None:
        if background == "true":
            loop.saving.saver._background.thread.join()
        soft.append(file_limit(200_000))
        soft[0].__enter__()

    loop.training.engine.at_step[4] = fill
    try:
        with pytest.raises(CheckpointError, match=r"iter_0000008\.tmp: File too large; .*; free some space or set"):
            loop.run()
    finally:
        soft[0].__exit__(None, None, None)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["iter_0000003"]
    check_content(tmp_path)


def test_a_save_on_the_way_is_completed_when_the_run_is_asked_to_stop(tmp_path):
    loop = loop_of(tmp_path, **{"checkpoint.in_background": "true", "checkpoint.save_interval": "4"})
    loop.training.engine.at_step[5] = lambda: (tmp_path / "stop").touch()
    outcome = loop.run()
    assert (outcome.exit_code, outcome.iteration) == (75, 5)
    assert saved(tmp_path) == [4, 5]
    assert not loop.saving.saver.is_writing
    check_content(tmp_path)
