"""The cause of an end, from its kind, signal, exit code and words."""

from __future__ import annotations

import pytest

from megads.monitor.causes.classify import NEAR_END_S, SUSPECTS, End, classify

KILLED = "rank 3 host b: killed by signal 9 (SIGKILL)"


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (End(0, "done"), ""),
        (End(75, "stopped", "asked to stop"), ""),
        (End(75, "stopped", "the allocation ends at 18:00"), "time"),
        (End(2, "wrong", "rank 0: TP=3 does not divide"), "user"),
        (End(2, "wrong", "rank 0: runs/r: No space left on device; free some space"), "filesystem"),
        (End(1, "import", "rank 0: No module named 'x'"), "user"),
        (End(1, "memory", f"{KILLED}: this host ran out of memory"), "memory"),
        (End(1, "killed", KILLED, "b"), "unknown"),
        (End(1, "killed", "rank 1 host b: killed by signal 11 (SIGSEGV)", "b"), "unknown"),
        (End(1, "hang", "no progress for 600 s in step after iteration 3: rank 3 host b did not answer", "b"), "node"),
        (
            End(1, "hang", "no progress for 600 s in step after iteration 3: rank 3 host b did not arrive", "b"),
            "unknown",
        ),
        (End(1, "hang", "no progress for 600 s in step after iteration 3: all ranks are in the same place"), "fabric"),
        (End(1, "replica", "rank 0 host a: replica check: rank 3 (b) differs from 3 other copies", "b"), "node"),
        (End(1, "replica", "rank 0 host a: step 4: replica check: ranks 0 (a) and 1 (b) hold different"), "unknown"),
        (
            End(1, "lost", "rank 0 host a: lost another rank on b: Connection closed by peer [10.0.0.2]:1", "b"),
            "fabric",
        ),
        (End(1, "error", "rank 0 host a: ValueError: planted", "a"), "unknown"),
        (End(1, "error", "rank 3 host b: ended with exit code 143 and no message", "b", left_s=9.0), "time"),
        (End(1, "error", "rank 3 host b: ended with exit code 17 and no message", "b"), "unknown"),
        (End(130), "user"),
        (End(137), "unknown"),
        (End(139), "unknown"),
    ],
)
def test_the_cause_of_an_end(end, cause):
    found = classify(end)
    assert found.cause == cause
    assert found.verdict
    if cause in SUSPECTS:
        assert found.host == end.host


def test_what_the_launcher_printed_says_more_than_that_a_peer_is_gone():
    lost = End(1, "lost", "rank 0 host a: lost another rank on b: Connection closed by peer", "b")
    said = "NCCL WARN remote process exited\nCUDA error: uncorrectable ECC error encountered\n"
    assert classify(End(1, "lost", lost.message, "b", said)).cause == "node"
    # What only follows is no cause.
    assert "gone" in classify(End(1, "lost", lost.message, "b", "Broken pipe\nConnection reset by peer\n")).verdict


PLUGIN = "NCCL INFO Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory"


def test_what_libraries_do_without_is_no_error_of_the_user():
    """A run that trained for hours, or a rank that was killed, was not restarted for a line printed at its start."""
    said = f"UserWarning: ModuleNotFoundError: No module named 'apex', using torch\nnid1:7:7 [0] {PLUGIN}\n"
    assert classify(End(1, "killed", KILLED, "b", said)).cause == "unknown"
    lost = "rank 0 host a: lost another rank on b"
    assert classify(End(1, "lost", lost, "b", said, has_trained=True)).cause == "fabric"
    assert classify(End(1, "", said=said)).cause == "user"
    assert classify(End(1, "", said=f"nid1:7:7 [0] {PLUGIN}\n")).cause == "unknown"


@pytest.mark.parametrize("code", [143, 271])
@pytest.mark.parametrize(
    ("left_s", "cause"), [(11 * 3600 + 55 * 60, "unknown"), (NEAR_END_S, "time"), (-20.0, "time"), (None, "unknown")]
)
def test_a_signal_is_the_end_of_the_wall_time_only_near_it(code, left_s, cause):
    found = classify(End(code, left_s=left_s))
    assert found.cause == cause
    if left_s == 11 * 3600 + 55 * 60:
        assert found.verdict == "ended by signal 15 (SIGTERM) with 11h55m left, so not by the wall time"


def test_a_host_that_a_launcher_names_counts_more_than_the_one_that_complained():
    found = classify(End(1, "error", "rank 0 host a: gone", "a", "srun: error: Node failure on nid7\n"))
    assert (found.cause, found.host) == ("node", "nid7")


def test_an_exception_is_shown_by_its_last_line():
    message = (
        "rank 0 host a: it failed\nTraceback (most recent call last):\n  File x\nKeyError: 'a'\nRuntimeError: planted\n"
    )
    assert classify(End(1, "error", message)).verdict == "RuntimeError: planted"
