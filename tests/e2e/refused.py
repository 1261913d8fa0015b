"""Call the command with something wrong, and see that it is refused with one line and nothing else."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.e2e.conftest import Command
from tests.forks import popen

# Settings of a run on the files that tests.data.factory writes.
DATA = {"TOKENIZER_TYPE": "NullTokenizer", "VOCAB_SIZE": "100", "VAL_SPLIT": "200", "TRAIN_SPLIT": "800"}
TINY = {"HIDDEN": "8", "FFN_HIDDEN_SIZE": "8", "NLAYERS": "1", "SEQ": "8", "EVAL_INTERVAL": "0", "MEGADS_DEVICE": "cpu"}


def tree(folder: Path) -> dict[str, int]:
    """Return every path below ``folder`` with its size."""
    return {str(path.relative_to(folder)): path.lstat().st_size for path in folder.rglob("*")}


def run(megads: Command, *words: str, before_exec: Callable[[], object] | None = None, **settings: str):
    """Call the command on the CPU, in the folder of ``megads``, with something done to its process first."""
    # A write that is cut short must not leave half a .pyc in the checkout.
    no_bytecode = {"PYTHONDONTWRITEBYTECODE": "1"} if before_exec else {}
    env = megads.env(**{"MEGADS_DEVICE": "cpu", **no_bytecode, **settings})
    return popen.run(
        [sys.executable, "-m", "megads", *words],
        cwd=megads.folder,
        env={name: value for name, value in env.items() if value != "unset"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        preexec_fn=before_exec,
        timeout=100,
        encoding="utf8",
    )


def one_line(done: subprocess.CompletedProcess[str], *told: str) -> str:
    """Check that ``done`` was refused with one line that holds every text of ``told``; return the line."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("megads: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    for text in told:
        assert text in done.stderr, f"{text!r} is not in {done.stderr}"
    return done.stderr


def refused(
    megads: Command, *words: str, told: list[str], before_exec: Callable[[], object] | None = None, **settings: str
) -> str:
    """Run ``megads train`` and check that it is refused, starts nothing and leaves nothing."""
    before = tree(megads.folder)
    line = one_line(run(megads, "train", *words, before_exec=before_exec, **settings), *told)
    assert tree(megads.folder) == before
    return line


def limit_files(size: int) -> Callable[[], None]:
    """Return what makes every file of a process end at ``size`` bytes, as on a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
