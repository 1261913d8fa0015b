"""The commands of a page, run in one shell as its reader would run them: see ``docs/tutorial.md``.

``python -m tests.documents docs/tutorial.md FOLDER`` runs a page with the ``megads`` on PATH, without a shortened
setting, and prints what each command took and printed: also that of a wheel, in an empty folder. Imports only the
standard library.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PORT = "5000"
"""Where a page has its server: a walk uses a free port instead."""


@dataclass(frozen=True)
class Step:
    """A command that was run."""

    command: str
    seconds: float
    output: str  # stdout and stderr


def commands(document: Path) -> list[str]:
    """Return the commands of the document's shell blocks: lines that begin with ``$ ``.

    A command continues behind a backslash, and up to the end of its here document.
    """
    blocks = re.findall(r"```bash\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
    found: list[str] = []
    for block in blocks:
        lines = iter(block.splitlines())
        for line in lines:
            if not line.startswith("$ "):
                continue
            command = [line[2:]]
            while command[-1].endswith("\\"):
                command.append(next(lines))
            if here := re.search(r"<<'?(\w+)'?", command[-1]):
                while command[-1] != here[1]:
                    command.append(next(lines))
            found.append("\n".join(command))
    return found


def walk(lines: Sequence[str], folder: Path, env: Mapping[str, str], timeout_s: float) -> list[Step]:
    """Run commands one after another in one bash that stands in ``folder``; return what they printed.

    Variables, folders and background processes last from one command to the next. At the end nothing runs any more.

    Raises:
        AssertionError: a command's exit code is not 0, or all together took too long.
    """
    outputs = folder.with_name(f"{folder.name}-outputs")
    outputs.mkdir()
    script = outputs / "script"
    script.write_text(_script(lines, outputs, _free_port()), encoding="utf-8")
    (outputs / "ended").write_text(f"0 {time.time()}\n")
    bash = subprocess.Popen(
        ["bash", str(script)],
        cwd=folder,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        is_late = False
        bash.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        is_late = True
    finally:
        with suppress(ProcessLookupError):
            os.killpg(bash.pid, signal.SIGKILL)
        bash.wait()
    ended = [row.replace(",", ".").split() for row in (outputs / "ended").read_text().splitlines()]
    if is_late or ended[-1][0] != "0":
        last = len(ended) - (1 if is_late else 2)
        what = f"not over {timeout_s:g} s after the first command began" if is_late else f"exit code {ended[-1][0]}"
        raise AssertionError(f"{what}\n$ {lines[last]}\n{_output(outputs, last)}")
    times = [float(row[1]) for row in ended]
    return [
        Step(line, after - before, _output(outputs, number))
        for number, (line, before, after) in enumerate(zip(lines, times, times[1:], strict=False))
    ]


def _script(lines: Sequence[str], outputs: Path, port: int) -> str:
    """Return what bash runs: every command with a file of its own for its output, up to the first that fails."""
    ended = shlex.quote(f"{outputs}/ended")
    script: list[str] = []
    for number, line in enumerate(lines):
        line = line.replace(f":{PORT}", f":{port}").replace(f"--port {PORT}", f"--port {port}")
        script += [
            "{",
            line,
            f"}} > {shlex.quote(f'{outputs}/{number}')} 2>&1",
            f"echo $? $EPOCHREALTIME >> {ended}",
            f"tail -n 1 {ended} | grep -q '^0 ' || exit 1",
        ]
    return "\n".join(script) + "\n"


def _output(outputs: Path, number: int) -> str:
    path = outputs / str(number)
    return path.read_text("utf-8", "replace") if path.exists() else ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def main(document: str, folder: str) -> None:
    """Walk a page in a folder that is new or empty, and print what happened."""
    place = Path(folder).absolute()
    place.mkdir(parents=True, exist_ok=True)
    steps = walk(commands(Path(document)), place, os.environ, timeout_s=3600)
    for step in steps:
        sys.stdout.write(f"$ {step.command}\n{step.output}[{step.seconds:.1f} s]\n\n")
    sys.stdout.write(f"{len(steps)} commands in {sum(step.seconds for step in steps):.0f} s\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
