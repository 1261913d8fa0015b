"""What the ranks of a run with a fault run first: the fault, at its step, in its rank."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.faults.kinds import Fault
from tests.shim import planted

_FASTER = """
if "train" in sys.argv:
    import megads.launch.supervise.restart as restart
    restart.WAIT_S, restart.STORAGE_WAIT_S = 0.05, 2.0
"""
_FAULT = """
def act(run_dir):
    import pathlib, signal, time
    name, value = FAULT["action"], FAULT["value"]
    newest = sorted((run_dir / "checkpoints").glob("iter_*[0-9]"))
    if name == "damage" and newest:
        path = sorted(newest[-1].glob("*.safetensors"))[0]
        data = bytearray(path.read_bytes())
        if value == "flip":
            data[len(data) // 2] ^= 4
        path.write_bytes(data[: {"cut": len(data) // 2, "empty": 0}.get(value, len(data))])
        if value == "remove":
            path.unlink()
    if name == "heart":
        path = run_dir / "heartbeat.json"
        path.unlink(missing_ok=True)
        if value == "garbage":
            path.write_bytes(bytes(range(256)))
        if value == "folder":
            path.mkdir()
    if name in ("damage", "heart"):
        name = "SIGKILL"
    if name.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, name))
        time.sleep(600 if name == "SIGSTOP" else 5)
    if name == "exit":
        os._exit(int(value))
    if name == "raise":
        raise RuntimeError(value)
    if name == "import":
        import no_such_package
    if name == "memory":
        raise MemoryError("planted")

def first(done):
    # Ranks may reach the step together; one of them fails.
    try:
        os.close(os.open(done, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True

if FAULT["action"] and "worker" in sys.argv and RANK in ("", str(FAULT["rank"])):
    import pathlib
    import megads.train.loop as loop
    step = loop.Loop.step
    def faulty(self, *batches):
        run_dir = self.training.run_dir
        done = pathlib.Path(str(run_dir) + ".done")
        if self.training.progress.iteration == FAULT["at"] and (first(done) or FAULT["every"]):
            act(run_dir)
        return step(self, *batches)
    loop.Loop.step = faulty
"""


def text_of(fault: Fault, counts: Path) -> str:
    """Return the program; calls of the file system are counted in ``counts``."""
    known = {name: value for name, value in asdict(fault).items() if name in ("action", "value", "rank", "at", "every")}
    text = f"{_FASTER}FAULT = {json.dumps(known).replace('true', 'True').replace('false', 'False')}\n{_FAULT}"
    if fault.rules:
        lines = "".join(f"    {line}\n" for line in planted(fault.rules, counts=counts).splitlines())
        text += f'if "worker" in sys.argv:\n{lines}'
    return text
