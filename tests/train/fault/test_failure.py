"""What a failure is called, and whom it blames."""

from __future__ import annotations

import socket

import pytest
import torch

from megads.cluster.ranks import RankInfo
from megads.errors import ConfigError, ReplicaError
from megads.monitor.run_state.outcome import read_outcome
from megads.train.fault import failure
from megads.train.fault.failure import kind_of, peer_host

CLOSED = "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [{}]:21339"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConfigError("TP=3"), "wrong"),
        (ModuleNotFoundError("no flash_attn"), "import"),
        (MemoryError(), "memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "memory"),
        (RuntimeError(CLOSED.format("10.0.0.7")), "lost"),
        (ReplicaError("rank 3 differs", 3, "b"), "replica"),
        (RuntimeError("shape mismatch"), "error"),
        (ZeroDivisionError(), "error"),
    ],
)
def test_the_kind_of_a_failure(error, kind):
    assert kind_of(error) == kind


@pytest.mark.parametrize(
    ("text", "host"),
    [
        (CLOSED.format("127.0.0.1"), socket.gethostname()),
        (CLOSED.format("::ffff:127.0.0.1"), socket.gethostname()),
        (CLOSED.format("0.0.0.0"), "0.0.0.0"),
        ("Broken pipe", ""),
    ],
)
def test_the_host_of_a_lost_rank_comes_from_its_address(text, host):
    assert peer_host(text) == host


def test_what_comes_last_is_done_once_the_outcome_is_written(tmp_path, monkeypatch):
    """The folder is let go then: the next run removes what this one left of its end."""
    seen = []

    def leave(text, code):
        raise SystemExit(code)

    monkeypatch.setattr(failure, "leave", leave)
    info = RankInfo(0, 1, 0, 1, "none")
    with pytest.raises(SystemExit, match="2"):
        failure.fail(ConfigError("TP=3"), tmp_path, info, {}, 7, lambda: seen.append(read_outcome(tmp_path)))
    assert [(each.kind, each.iteration) for each in seen] == [("wrong", 7)]
