"""Runs pytest in forked processes, for copies of the tree that hold a bug; see tests/mutations.py.

Reads a JSON line ``[folder, words]`` and answers with a JSON line ``[exit code, what was printed]``. It imports
torch and DeepSpeed, and nothing of megads or of its tests: those come from the folder, each time again.
"""

import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
import warnings

OURS = ("megads", "tests", "benchmarks")
TIMEOUT_S = 300
INTERNAL = 3  # pytest's exit code for an error of its own


def main() -> None:
    # Hypothesis's plugin imports all of Hypothesis, for what it tells at the end.
    os.environ |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_timeout"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("numpy", "torch", "torch.distributed.tensor", "deepspeed", "pydantic", "yaml", "pytest"):
            importlib.import_module(name)
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(here))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") not in (here, root)]
    os.environ.pop("PYTHONPATH", None)
    assert not any(name.partition(".")[0] in OURS for name in sys.modules)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        folder, words = json.loads(line)
        with tempfile.TemporaryFile() as printed:
            code = run(folder, words, printed.fileno())
            printed.seek(0)
            answer = [code, printed.read().decode(errors="replace")]
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def run(folder: str, words: list[str], printed: int) -> int:
    """Run pytest on a tree and return its exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    signal.alarm(TIMEOUT_S)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, stream in enumerate((null, printed, printed)):
        os.dup2(stream, number)
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True  # a bug and its repair may be of one second and one size
    os.environ["PYTHONPATH"] = folder
    code = INTERNAL
    try:
        import pytest

        code = int(pytest.main(words))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


main()
