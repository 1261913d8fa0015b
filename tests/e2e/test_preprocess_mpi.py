"""Preprocessing by the ranks of a real Open MPI and a real MPICH."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.data.preprocess.conftest import texts, write_jsonl

ROOT = Path(__file__).parents[2]
LAUNCHERS = [
    pytest.param(["mpirun.openmpi", "--oversubscribe", "-np"], id="openmpi"),
    pytest.param(["mpiexec.hydra", "-n"], id="hydra"),
]
ENV = {"PYTHONPATH": str(ROOT), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
PROGRAM = [sys.executable, "-m", "megads", "data", "preprocess"]
NULL = ["--tokenizer-type", "NullTokenizer", "--vocab-size", "999", "--append-eod", "--encoder", "original"]


@pytest.fixture
def corpus(tmp_path: Path) -> list[str]:
    """Write two plain files and a packed one between them; return how to name them."""
    values = [" ".join(str(ord(letter) % 999) for letter in text) for text in texts(900)]
    write_jsonl(tmp_path / "a.jsonl", values[:500])
    lines = "".join(json.dumps({"text": value}) + "\n" for value in values[500:600])
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    write_jsonl(tmp_path / "c.jsonl", values[600:])
    return ["--input", "a.jsonl", "b.jsonl.gz", "c.jsonl", "--workers", "1"]


def call(folder: Path, *words: str, ranks: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*(ranks or []), *PROGRAM, *words],
        cwd=folder,
        env=os.environ | ENV,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.mpi
@pytest.mark.parametrize("starter", LAUNCHERS)
def test_bytes_are_those_of_one_process(tmp_path, corpus, starter):
    alone = call(tmp_path, *corpus, *NULL, "--output-prefix", "one")
    assert alone.returncode == 0, alone.stderr
    done = call(tmp_path, *corpus, *NULL, "--output-prefix", "three", ranks=[*starter, "3"])
    assert done.returncode == 0, done.stderr
    for suffix in (".bin", ".idx"):
        files = [(tmp_path / f"{name}_text_document{suffix}").read_bytes() for name in ("one", "three")]
        assert files[0] == files[1]
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr.count("megads: encoder: ") == 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.mpi
@pytest.mark.parametrize("starter", LAUNCHERS)
def test_bad_line_of_another_rank_is_one_line(tmp_path, corpus, starter):
    with (tmp_path / "c.jsonl").open("a") as file:
        file.write("bad\n")
    done = call(tmp_path, *corpus, *NULL, "--output-prefix", "out", ranks=[*starter, "3"])
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("megads: ") and "encoder" not in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("megads: c.jsonl:301: is not JSON")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.mpi
@pytest.mark.parametrize("starter", LAUNCHERS)
def test_a_rank_that_is_killed_ends_all_and_can_be_made_up_for(tmp_path, corpus, starter):
    """The launcher ends the others; the same command then makes what is missing."""
    slow = ["--block-bytes", "200", "--commit-seconds", "0", "--chunk-size", "1"]
    process = subprocess.Popen(
        [*starter, "3", *PROGRAM, *corpus, *NULL, *slow, "--output-prefix", "out"],
        cwd=tmp_path,
        env=os.environ | ENV,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + 120
    journal = tmp_path / ".out_text_document.preprocess" / "part-1" / "journal"
    while not (journal.exists() and (victim := _rank(tmp_path, 1))):
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(victim, signal.SIGKILL)
    assert process.wait(timeout=120) != 0
    assert not list(tmp_path.glob("out*.idx"))
    assert call(tmp_path, *corpus, *NULL, "--output-prefix", "one").returncode == 0
    again = call(tmp_path, *corpus, *NULL, "--output-prefix", "out", ranks=[*starter, "3"])
    assert again.returncode == 0, again.stderr
    made = [(tmp_path / f"{name}_text_document.bin").read_bytes() for name in ("one", "out")]
    assert made[0] == made[1]


def _rank(folder: Path, wanted: int) -> int:
    """Return the process id of a rank that works in ``folder``, 0 if there is none; the lowest: workers come later."""
    names = {b"OMPI_COMM_WORLD_RANK=%d" % wanted, b"PMI_RANK=%d" % wanted}
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            here = os.readlink(path / "cwd") == str(folder)
            if here and names & set((path / "environ").read_bytes().split(b"\0")):
                found.append(int(path.name))
        except OSError:
            continue
    return min(found, default=0)
