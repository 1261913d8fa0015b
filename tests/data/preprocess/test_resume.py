"""Killed at any moment, the same command resumes, and the files are those of a run that was let alone."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.data.preprocess.conftest import FINE, alive, golden, kill, texts, until


def whole(megads) -> bool:
    """Check that there is a whole data set or nothing to be taken for one; return which."""
    names = [name for name in os.listdir(megads.folder) if name.startswith("out")]
    assert "out_text_document.idx" not in names or len(names) == 3
    return len(names) == 3


def moment(rng: random.Random, folder: Path, parts: int, size: int) -> Callable[[], bool]:
    """Return what tells that a random moment of a run has come: a time, an amount of work, a step at the end."""
    work = folder / ".out_text_document.preprocess"
    kind = rng.choice(["time", "work", "work", "work", "step"])
    if kind == "time":
        end = time.monotonic() + rng.uniform(0, 0.2)
        return lambda: time.monotonic() >= end
    if kind == "work":
        path, least = work / f"part-{rng.randrange(parts)}" / "0.bin", rng.random() * size / parts
        return lambda: path.exists() and path.stat().st_size >= least
    names = ["part-0/0.idx", "part-0/0.info.json", "publish", "../out_text_document.bin", "../out_text_document.idx"]
    step = work / rng.choice(names)
    return step.exists


@pytest.mark.parametrize("kind", ["plain", "gz", "two parts"])
def test_killed_at_random_moments(megads, kind):
    """Kill a run again and again until it is through; 20 times for each kind of input."""
    rng = random.Random(kind)
    values = [[rng.randrange(60_000) for _ in range(rng.randrange(30))] for _ in range(6000)]
    expected = np.array([token for value in values for token in [*value, 60_000] if value], "<u2").tobytes()
    lines = "".join(json.dumps({"text": " ".join(map(str, value))}) + "\n" for value in values).encode()
    (megads.folder / "a.jsonl").write_bytes(gzip.compress(lines) if kind == "gz" else lines)
    parts = 2 if kind == "two parts" else 1
    words = [
        "--input",
        "a.jsonl",
        "--output-prefix",
        "out",
        "--append-eod",
        "--partitions",
        parts,
        "--encoder",
        "original",
    ]
    words += ["--tokenizer-type", "NullTokenizer", "--vocab-size", 60_000, "--encoder", "original", *FINE]
    megads.made(*words)
    files = megads.files()
    assert files["out_text_document.bin"] == expected
    kills = resumed = 0
    while kills < 20:
        for name in os.listdir(megads.folder):
            if name.startswith("out"):
                (megads.folder / name).unlink()
        while not whole(megads):
            pid = megads.start(*words)
            has_come = moment(rng, megads.folder, parts, len(expected))
            until(lambda pid=pid, has_come=has_come: has_come() or not alive(pid))
            kill(pid)
            done = megads.wait(pid)
            resumed += "resuming after" in done.err and "after 0 documents" not in done.err
            assert done.code in (0, -signal.SIGKILL), done.err
            kills += done.code != 0
        assert megads.files().items() >= files.items()
    assert resumed > 0
    began = time.monotonic()
    megads(*words)  # takes away what the last kill left, if anything
    assert time.monotonic() - began < 30
    assert [name for name in megads.hidden() if not name.endswith(".lock")] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_with_one_line_and_keep_the_work(megads, tokenizer, words, number):
    slow = [*words, "--encoder", "original", "--verify"]
    pid = megads.start(*slow)
    work = megads.folder / ".out_text_document.preprocess" / "part-0" / "journal"
    until(lambda: work.exists() and work.read_bytes().count(b"\n") > 2)
    kill(pid, number)
    done = megads.wait(pid)
    assert done.code == 128 + number
    assert done.error == "megads: stopped by a signal; rerun the same command to resume"
    assert megads.files().keys() == {"0.bin"}
    assert megads.hidden() == [".out_text_document.preprocess"]
    done = megads.made(*slow)
    assert "resuming after" in done.err
    assert megads.files()["out_text_document.bin"] == golden(tokenizer, texts(1500), eod=True)[0]
    assert megads.hidden() == []


def test_two_runs_at_once(megads, tokenizer, words):
    """The second one is refused while the first one works, and does not disturb it."""
    first = megads.start(*words, "--verify", "--encoder", "original")
    number = megads.count
    until(lambda: (megads.folder / ".out_text_document.preprocess").exists())
    kill(first, signal.SIGSTOP)
    second = megads(*words)
    kill(first, signal.SIGCONT)
    assert second.code == 2
    assert second.error.startswith("megads: out_text_document: another process is making it; wait, or use another")
    assert megads.wait(first, number).code == 0
    assert megads.files()["out_text_document.bin"] == golden(tokenizer, texts(1500), eod=True)[0]
    assert megads.hidden() == []


def test_input_that_changes_meanwhile(megads, words):
    pid = megads.start(*words, "--verify", "--encoder", "original")
    until(lambda: (megads.folder / ".out_text_document.preprocess").exists())
    with (megads.folder / "a.jsonl").open("a") as file:
        file.write('{"text": "more"}\n')
    done = megads.wait(pid)
    assert done.code == 2
    assert done.error == "megads: a.jsonl: changed while it was read; rerun when it is complete"
    assert megads.files() == {}


def test_an_empty_work_folder_of_a_killed_call_goes(megads, words):
    """A call that was killed before its last line had everything in place."""
    megads.made(*words)
    (megads.folder / ".out_text_document.preprocess").mkdir()
    assert "already exists" in megads(*words).error
    assert megads.hidden() == []
