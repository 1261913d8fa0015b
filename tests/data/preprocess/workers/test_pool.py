"""Workers that are killed, and workers whose leader is."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.data.preprocess.conftest import alive, golden, kill, texts, until, write_jsonl


def test_a_worker_that_is_killed(megads, tokenizer, words):
    """As when the system runs out of memory; with enough text that a busy host sees it run."""
    write_jsonl(megads.folder / "a.jsonl", texts(9000))
    pid = megads.start(*words, "--verify", "--encoder", "original", "--keep-seconds", 0)
    work = megads.folder / ".out_text_document.preprocess" / "part-0" / "journal"
    until(lambda: work.exists() and work.read_bytes().count(b"\n") > 2)
    os.kill(children_of(pid)[0], signal.SIGKILL)
    done = megads.wait(pid)
    assert done.code == 2
    kept, error = done.err.splitlines()[-2:]
    assert error.startswith("megads: a worker was ended by SIGKILL; probably out of memory: use fewer --workers")
    assert kept.startswith("megads: finished work is kept in .out_text_document.preprocess")
    megads.made(*words, "--verify")
    assert megads.files()["out_text_document.bin"] == golden(tokenizer, texts(9000), eod=True)[0]


def test_workers_end_with_a_leader_that_is_killed(megads, words):
    pid = megads.start(*words, "--verify", "--encoder", "original")
    until(lambda: len(children_of(pid)) == 2)
    children = children_of(pid)
    kill(pid)
    megads.wait(pid)
    until(lambda: not any(alive(child) for child in children))


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
