"""Call ``megads corpus`` in processes of its own, forked from the one that the tests of preprocessing use."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.data.preprocess.conftest import Done, Megads, alive, kill, until, zygote

__all__ = ["zygote"]

# Blocks and points so small that every kill finds the run somewhere else.
FINE = ("--block-bytes", 1000, "--commit-seconds", 0)


@dataclass
class Corpus(Megads):
    """Calls ``megads corpus`` in ``folder``."""

    def start(self, *words: object, command: Sequence[str] = ("corpus",), **options: Any) -> int:
        return super().start(*words, command=command, **options)

    def in_ranks(self, size: int, *words: object) -> list[Done]:
        """Call the command as ``size`` ranks that a launcher started."""
        pids = []
        for rank in range(size):
            env = {"MEGADS_RANK": str(rank), "MEGADS_WORLD_SIZE": str(size), "MEGADS_LOCAL_RANK": str(rank)}
            pids.append((self.start(*words, env={**os.environ, **env}), self.count))
        return [self.wait(pid, number) for pid, number in pids]

    def killed(self, *words: object, output: str, progress: Callable[[], int], step: int, seed: int) -> int:
        """Kill the call three times, each time a drawn number of up to ``step`` later; return how often it resumed.

        A call that is through before it is killed starts again without its output.
        """
        draw, kills, resumed = random.Random(seed), 0, 0
        while kills < 3 or not resumed:
            least = progress() + draw.randint(1, step)
            pid = self.start(*words)
            until(lambda pid=pid, least=least: not alive(pid) or progress() >= least)
            kill(pid)
            done = self.wait(pid)
            assert done.code in (0, -signal.SIGKILL), done.err
            kills += done.code == -signal.SIGKILL
            resumed += "resuming after" in done.err
            for name in (output, f"{output}.report.json"):
                (self.folder / name).unlink(missing_ok=True)
        return resumed

    def points(self, output: str) -> int:
        """Return how many points the frame has noted from which a call resumes."""
        journal = self.folder / f".{output}.corpus" / "part-0" / "journal"
        return journal.read_bytes().count(b"\n") if journal.exists() else 0

    def write(self, name: str, documents: Sequence[Any]) -> list[str]:
        """Write an object or text a line; return the lines."""
        lines = [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in documents]
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return lines

    def lines(self, name: str) -> list[str]:
        return (self.folder / name).read_text(encoding="utf-8").splitlines()

    def read(self, name: str) -> list[Any]:
        """Return the objects of a file."""
        return [json.loads(line) for line in (self.folder / name).read_bytes().splitlines()]

    def report(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"{name}.report.json").read_bytes())
        return found

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def megads(tmp_path: Path, zygote) -> Corpus:
    folder = tmp_path / "here"
    folder.mkdir()
    return Corpus(folder, zygote)
