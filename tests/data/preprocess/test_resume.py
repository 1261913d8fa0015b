"""Killed at any moment, the same command continues, and the files are those of a run that was let alone."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.data.preprocess.conftest import golden, kill, texts, write_jsonl

# Blocks and points so small that every kill finds the run somewhere else.
FINE = ("--workers", 2, "--block-bytes", 2000, "--commit-seconds", 0)


@pytest.fixture
def words(megads, tokenizer):
    write_jsonl(megads.folder / "a.jsonl", texts(1500))
    return ["--input", "a.jsonl", "--output-prefix", "out", "--tokenizer-model", tokenizer, "--append-eod", *FINE]


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


def stopped(megads, *words: object) -> None:
    """Stop a call in the middle."""
    pid = megads.start(*words, "--verify", "--encoder", "original")
    work = megads.folder / ".out_text_document.preprocess" / "part-0" / "journal"
    until(lambda: work.exists() and work.read_bytes().count(b"\n") > 2)
    kill(pid)
    assert megads.wait(pid).code == -signal.SIGKILL


def until(condition) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it does not come")


@pytest.mark.parametrize("change", ["input", "option", "tokenizer", "journal", "tokens"])
def test_work_of_another_command_is_thrown_away(megads, tokenizer, words, change):
    stopped(megads, *words)
    part = megads.folder / ".out_text_document.preprocess" / "part-0"
    changed = [*words, "--verify"]
    values = texts(1500)
    if change == "input":
        values = values[:100]
        write_jsonl(megads.folder / "a.jsonl", values)
    elif change == "option":
        changed.remove("--append-eod")
    elif change == "tokenizer":
        copy = megads.folder / "tokenizer.json"
        copy.write_text(
            tokenizer.read_text().replace('"type":"BPE"', '"type":"BPE","dropout":0.0').replace("\n", "\n ")
        )
        changed = [copy if word == tokenizer else word for word in changed]
        changed += ["--vocab-extra-ids", 3]
    elif change == "journal":
        (part / "journal").write_bytes(b"{}\n")
    else:
        os.truncate(part / "0.bin", 1)
    done = megads.made(*changed)
    assert "discarding " in done.err
    assert "resuming after" not in done.err
    eod = change != "option"
    assert megads.files()["out_text_document.bin"] == golden(tokenizer, values, eod=eod)[0]


def test_journal_cut_in_a_line(megads, tokenizer, words):
    """What a power cut leaves: the last point that is whole counts."""
    stopped(megads, *words)
    journal = megads.folder / ".out_text_document.preprocess" / "part-0" / "journal"
    journal.write_bytes(journal.read_bytes() + b'{"position": {"segm')
    done = megads.made(*words, "--verify")
    assert "resuming after" in done.err
    assert megads.files()["out_text_document.bin"] == golden(tokenizer, texts(1500), eod=True)[0]


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


def test_a_worker_that_is_killed(megads, tokenizer, words):
    """As when the system runs out of memory."""
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
    assert megads.files()["out_text_document.bin"] == golden(tokenizer, texts(1500), eod=True)[0]


def test_workers_end_with_a_leader_that_is_killed(megads, words):
    pid = megads.start(*words, "--verify", "--encoder", "original")
    until(lambda: len(children_of(pid)) == 2)
    children = children_of(pid)
    kill(pid)
    megads.wait(pid)
    until(lambda: not any(alive(child) for child in children))


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


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


def test_stopped_between_the_names(megads, tokenizer, words):
    """From the moment when everything is whole, the next call only gives the names."""
    megads.made(*words)
    files = megads.files()
    made = {path.name: path.read_bytes() for path in megads.folder.iterdir() if path.is_file()}
    from megads.data.preprocess.input.files import look_at
    from megads.data.preprocess.plan import Job, digest_of, key_of
    from megads.data.tokenizers.base import TokenizerSpec

    source = look_at(str(megads.folder / "a.jsonl"))
    source = type(source)("a.jsonl", source.kind, source.size, source.mtime_ns)
    job = Job((source,), "out", TokenizerSpec("HFTokenizer", str(tokenizer)), append_eod=True)
    key = {**key_of(job, repr(job.tokenizer), 0)}
    key["inputs"][0][0] = str(megads.folder / "a.jsonl")
    size = len(files["out_text_document.bin"])
    info = {"prefix": "out_text_document", "documents": 1500, "sequences": 1, "tokens": size // 2, "dtype": "uint16"}
    for given in ((), (".bin",), (".bin", ".info.json"), (".bin", ".info.json", ".idx")):
        part = megads.folder / ".out_text_document.preprocess" / "part-0"
        part.mkdir(parents=True)
        (part.parent / "publish").write_text(json.dumps({"job": digest_of(key), "made": [info]}))
        for suffix in (".bin", ".info.json", ".idx"):
            target = megads.folder / f"out_text_document{suffix}"
            target.unlink(missing_ok=True)
            (target if suffix in given else part / f"0{suffix}").write_bytes(made[target.name])
        done = megads.made(*words)
        assert "an earlier call had finished but for renaming the files; they are renamed now" in done.err
        assert megads.files() == files
        assert megads.hidden() == []
    shutil.rmtree(megads.folder)
