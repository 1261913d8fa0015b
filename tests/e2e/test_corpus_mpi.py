"""Corpus tools on the ranks of a real MPICH: the bytes of one process, and one line for a bad line of another rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def call(folder: Path, *words: str, ranks: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ranks, sys.executable, "-m", "megads", "corpus", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.mpi
def test_two_ranks(tmp_path):
    for name in "ab":
        lines = [json.dumps({"text": name * number, "n": number}) for number in range(300)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))  # no line break at the end
    alone = call(tmp_path, "merge", "a.jsonl", "b.jsonl", "one", "--workers", "1", "--block-bytes", "5000")
    assert alone.returncode == 0, alone.stderr
    ranks = ("mpiexec.hydra", "-n", "2")
    done = call(tmp_path, "merge", "a.jsonl", "b.jsonl", "two", "--workers", "1", ranks=ranks)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "two  # kept 600 of 600 documents\n"
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()
    reports = [json.loads((tmp_path / f"{name}.report.json").read_bytes()) for name in ("one", "two")]
    assert [report.pop("output") for report in reports] == ["one", "two"]
    assert reports[0] == reports[1]
    for name, more in (("four", ()), ("five", ranks)):
        done = call(tmp_path, "shuffle", "a.jsonl", "b.jsonl", name, "--workers", "1", ranks=more)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "four").read_bytes() == (tmp_path / "five").read_bytes()
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write("\nbad\n")
    done = call(tmp_path, "merge", "a.jsonl", "b.jsonl", "three", ranks=ranks)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("megads: ")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("megads: b.jsonl:301: is not JSON")
    assert not list(tmp_path.glob("*three*"))
