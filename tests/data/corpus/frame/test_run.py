"""The same bytes for any number of workers, however often a run is killed; no file has its name before the end."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal

import pytest

from tests.data.corpus.conftest import FINE
from tests.data.preprocess.conftest import alive, kill, until


def corpus(count: int) -> list[dict[str, object]]:
    rng = random.Random(count)
    return [{"text": "x" * rng.randrange(60), "n": number} for number in range(count)]


def numbered(values: list[dict[str, object]]) -> bytes:
    """Return what Megatron's add_id.py writes."""
    rows = ({**value, "adlr_id": f"p-{number:010d}"} for number, value in enumerate(values, start=1))
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


@pytest.mark.parametrize("workers", [1, 3])
def test_bytes_do_not_depend_on_workers_and_blocks(megads, workers):
    values = corpus(400)
    megads.write("a.jsonl", values[:150])
    lines = "".join(json.dumps(value) + "\n" for value in values[150:300]).encode()
    (megads.folder / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    megads.write("c.jsonl", values[300:])
    done = megads.made("add-id", "?.jsonl*", "out", "--id-prefix", "p", "--workers", workers, "--block-bytes", 900)
    assert (megads.folder / "out").read_bytes() == numbered(values)
    assert done.out == "out  # kept 400 of 400 documents\n"
    assert megads.names() == ["a.jsonl", "b.jsonl.gz", "c.jsonl", "out", "out.report.json"]
    report = megads.report("out")
    assert report["documents"] == {"read": 400, "kept": 400, "changed": 0, "dropped": 0}
    assert report["bytes"]["written"] == len(numbered(values))


@pytest.mark.parametrize("is_packed", [False, True])
def test_killed_at_random_moments(megads, is_packed):
    rng = random.Random(is_packed)
    values = corpus(3000)
    name = "a.jsonl"
    megads.write(name, values)
    if is_packed:
        name = "a.jsonl.gz"
        (megads.folder / name).write_bytes(gzip.compress((megads.folder / "a.jsonl").read_bytes()))
    expected = numbered(values)
    words = ["add-id", name, "out", "--id-prefix", "p", "--workers", 2, *FINE]
    journal = megads.folder / ".out.corpus" / "part-0" / "journal"

    def points() -> int:
        return journal.read_bytes().count(b"\n") if journal.exists() else 0

    kills = resumed = 0
    while kills < 12 or not resumed:
        least = points() + rng.randrange(6)
        pid = megads.start(*words)
        until(lambda pid=pid, least=least: not alive(pid) or points() >= least)
        kill(pid)
        done = megads.wait(pid)
        kills += done.code == -signal.SIGKILL
        resumed += "resuming after" in done.err
        assert done.code in (0, -signal.SIGKILL), done.err
        if (megads.folder / "out").exists():
            assert (megads.folder / "out").read_bytes() == expected
            for each in ("out", "out.report.json"):
                (megads.folder / each).unlink(missing_ok=True)
    megads(*words, "--overwrite")
    assert (megads.folder / "out").read_bytes() == expected
    assert [each for each in megads.hidden() if not each.endswith(".lock")] == []


def test_stopped_between_the_names(megads):
    """From the moment when everything is complete, the next call only gives the names."""
    megads.write("a.jsonl", corpus(20))
    megads.made("merge", "a.jsonl", "out", *FINE)
    made = {name: (megads.folder / name).read_bytes() for name in ("out", "out.report.json")}
    from megads.data.corpus.frame.job import CorpusJob, digest_of
    from megads.data.corpus.lines import Merge
    from megads.data.preprocess.input.files import find_inputs

    here = os.getcwd()
    os.chdir(megads.folder)
    try:
        identity = digest_of(CorpusJob(tuple(find_inputs(["a.jsonl"])), Merge(), "out"), 0) + " "
    finally:
        os.chdir(here)
    for given in ((), ("out.report.json",), ("out.report.json", "out")):
        part = megads.folder / ".out.corpus" / "part-0"
        part.mkdir(parents=True)
        moves = [["part-0/r", str(megads.folder / "out.report.json")], ["part-0/0.bin", str(megads.folder / "out")]]
        content = {"job": identity, "moves": moves, "made": json.loads(made["out.report.json"])}
        (part.parent / "publish").write_text(json.dumps(content))
        for (source, _), name in zip(moves, ("out.report.json", "out"), strict=True):
            (megads.folder / name).unlink(missing_ok=True)
            (megads.folder / (name if name in given else f".out.corpus/{source}")).write_bytes(made[name])
        done = megads.made("merge", "a.jsonl", "out", *FINE)
        assert "an earlier call had finished but for renaming the files" in done.err
        assert done.out == "out  # kept 20 of 20 documents\n"
        assert {name: (megads.folder / name).read_bytes() for name in made} == made
        assert megads.hidden() == []


def test_signal_keeps_the_work(megads):
    megads.write("a.jsonl", corpus(3000))
    pid = megads.start("merge", "a.jsonl", "out", *FINE)
    journal = megads.folder / ".out.corpus" / "part-0" / "journal"
    until(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 2)
    kill(pid, signal.SIGTERM)
    done = megads.wait(pid)
    if done.code:  # else it was through before the signal came
        assert done.code == 128 + signal.SIGTERM
        assert done.error == "megads: stopped by a signal; rerun the same command to resume"
        assert not (megads.folder / "out").exists()
        assert "resuming after" in megads.made("merge", "a.jsonl", "out", *FINE).err
    assert (megads.folder / "out").read_bytes() == (megads.folder / "a.jsonl").read_bytes()


def test_disk_full(megads):
    megads.write("a.jsonl", corpus(2000))
    done = megads("merge", "a.jsonl", "out", file_limit=5000)
    assert done.code == 2
    assert done.error.startswith("megads: out: cannot be written: file too large; free some space")
    assert megads.names() == ["a.jsonl"]
