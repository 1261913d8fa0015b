"""Plant bugs, one at a time, and show that the tests catch each of them.

    python -m tests.mutations            # all; one line each, exit code 1 if a bug goes unseen
    python -m tests.mutations rotary     # those whose name holds the word

Each bug of `tests/planted_*.py` is one piece of
text in one file, replaced in a copy of the tree; the tests named with it must then fail.
`tests/parity/test_mutations.py` runs the same in CI.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.planted_bugs import MUTATIONS as OF_ALL
from tests.planted_bugs import Mutation
from tests.planted_model_bugs import MODEL_MUTATIONS
from tests.planted_native_bugs import NATIVE_MUTATIONS
from tests.planted_system_bugs import SYSTEM_MUTATIONS
from tests.planted_task_bugs import TASK_MUTATIONS

MUTATIONS = (*OF_ALL, *MODEL_MUTATIONS, *TASK_MUTATIONS, *NATIVE_MUTATIONS, *SYSTEM_MUTATIONS)

ROOT = Path(__file__).parents[1]


def copy_tree(folder: Path) -> None:
    """Copy what the tests need into ``folder``, compiled files too, which Python compares with the time of the source.

    The time is that of the original, so a file that a bug was planted in, or taken back from, is compiled anew.
    """
    for name in ("megads", "tests", "envs", "launchers", "ALCF", "setup.cfg", "pyproject.toml", "train_7B.sh"):
        source = ROOT / name
        if source.is_dir():
            # While another worker compiles a file, it has a name of this kind, and is gone the next moment.
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("*.pyc.*"))
        else:
            shutil.copy2(source, folder / name)


@contextmanager
def runner() -> Iterator[subprocess.Popen[str]]:
    """Start the process that forks a pytest for each bug, with torch and DeepSpeed imported, which no bug changes."""
    script = Path(__file__).parent / "forks/pytests.py"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, str(script)], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()


def is_caught(mutation: Mutation, folder: Path, pytests: subprocess.Popen[str]) -> tuple[bool, str]:
    """Plant ``mutation`` in the copy ``folder``, run its tests, take it back; return whether they failed, and why.

    Args:
        mutation: the bug.
        folder: a copy of the tree.
        pytests: what :func:`runner` gives.

    Raises:
        ValueError: the text does not stand exactly once in the file.
    """
    path = folder / mutation.file
    whole = path.read_text()
    if whole.count(mutation.old) != 1:
        raise ValueError(f"{mutation.name}: {mutation.file} holds {whole.count(mutation.old)} times {mutation.old!r}")
    path.write_text(whole.replace(mutation.old, mutation.new))
    try:
        words = ["-x", "-q", "-p", "no:cacheprovider", *mutation.tests]
        assert pytests.stdin is not None
        assert pytests.stdout is not None
        pytests.stdin.write(json.dumps([str(folder), words]) + "\n")
        pytests.stdin.flush()
        code, printed = json.loads(pytests.stdout.readline())
    finally:
        path.write_text(whole)
    # pytest: 0 all passed, 1 some failed; anything else (nothing collected, an import error) proves nothing.
    if code not in (0, 1) or (code == 1) != ("\nFAILED " in printed):
        raise ValueError(f"{mutation.name}: pytest ended with {code}\n{printed[-2000:]}")
    reasons = re.findall(r"^E\s+(.+)$", printed, re.MULTILINE)
    return code == 1, reasons[-1] if reasons else ""


def main(word: str = "") -> int:
    """Try the mutations whose name holds ``word``; return the exit code."""
    unseen = 0
    with tempfile.TemporaryDirectory(prefix="megads-mutations-") as name, runner() as pytests:
        folder = Path(name)
        copy_tree(folder)
        for mutation in MUTATIONS:
            if word not in mutation.name:
                continue
            caught, reason = is_caught(mutation, folder, pytests)
            unseen += not caught
            sys.stdout.write(f"{'caught' if caught else 'UNSEEN'}  {mutation.name}: {reason[:100]}\n")
            sys.stdout.flush()
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
