"""Rank 0 renews what its launcher holds, publishes nothing once it is lost, and releases what is its own."""

from __future__ import annotations

import signal
import threading

import pytest

from megads.config.schema import RunConfig
from megads.config.settings.checkpoint import CheckpointConfig
from megads.errors import CheckpointError
from megads.storage.lease import holder_of, take, this_process
from megads.train.fault import kept_claim
from megads.train.fault.kept_claim import KeptClaim, keep_claim


@pytest.fixture
def held(tmp_path):
    """Leases of one token on a run folder and its checkpoints, which this process took."""
    me = this_process("1")
    run = RunConfig(checkpoint=CheckpointConfig(dir=str(tmp_path / "c")))
    for name in ("r", "c"):
        (tmp_path / name).mkdir()
        take(tmp_path / name, me, None)
    return run, tmp_path / "r", {"MEGADS_LEASE": me.token}


def test_ranks_without_a_launcher_and_all_but_rank_0_hold_nothing(held):
    run, folder, env = held
    for kept in (keep_claim(run, folder, 0, {}), keep_claim(run, folder, 1, env), KeptClaim()):
        assert kept.leases == []
        kept.check()
        kept.end()


def test_both_folders_are_renewed_and_released_by_the_process_that_took_them(held, monkeypatch):
    monkeypatch.setattr(kept_claim, "RENEWS_S", 0.01)
    run, folder, env = held
    kept = keep_claim(run, folder, 0, env)
    for path in (folder, folder.parent / "c"):
        before = holder_of(path)
        while holder_of(path).beat == before.beat:
            pass
    kept.end()
    assert holder_of(folder).is_over
    assert holder_of(folder.parent / "c").is_over
    take(folder, this_process("2"), holder_of(folder))
    kept.end()
    assert not holder_of(folder).is_over  # the next one's


def test_a_lost_folder_gets_no_checkpoint_and_ends_the_run(held, monkeypatch):
    monkeypatch.setattr(kept_claim, "RENEWS_S", 0.01)
    asked = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda number, frame: asked.set())
    run, folder, env = held
    try:
        kept = keep_claim(run, folder, 0, env)
        kept.check()
        take(folder, this_process("2"), holder_of(folder))
        for _ in range(60_000):
            if asked.wait(0.01):
                break
        with pytest.raises(CheckpointError, match=r"/r: job 2 of .* holds the folder of this run now; this one ends"):
            kept.check()
        kept.end()
    finally:
        kept._thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert asked.is_set()
    assert not holder_of(folder).is_over  # the other one's
