"""A real SLURM of two nodes on this host: one slurmctld and two slurmd of this user, in a temporary folder.

As a fixture (``tests/conftest.py`` has it for the session)::

    def test_something(slurm):
        done = slurm.run("srun", "-N2", "-n4", "hostname")

and from a shell, with ``SLURM_CONF`` set for the command::

    python -m tests.cluster.slurm -- sbatch --wait job.sh
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

NODES = ("m1", "m2")
CPUS = 8
"""Per node, more than there are: tasks of the tests do little but wait."""

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "salloc", "squeue", "scontrol")

_CONF = """
ClusterName=megads
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,bf_interval=1,default_queue_depth=20
SlurmdParameters=config_overrides
ReturnToService=2
MessageTimeout=20
TCPTimeout=5
SlurmctldTimeout=60
SlurmdTimeout=60
KillWait={kill_wait}
MinJobAge=300
UnkillableStepTimeout=30
JobRequeue=1
LaunchParameters=use_interactive_step
{more}
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=60 DefaultTime=10 OverSubscribe=YES:8 State=UP
"""


@dataclass
class Slurm:
    """A cluster that runs; ``env`` is the environment in which its commands reach it."""

    folder: Path
    conf: Path
    env: dict[str, str]
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(
        self, *command: str, env: Mapping[str, str] | None = None, timeout_s: float = 60, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of or in the cluster; return its output, whatever its exit code."""
        return subprocess.run(
            command,
            env=self.env | dict(env or {}),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def in_terminal(self, *command: str, env: Mapping[str, str] | None = None, timeout_s: float = 60) -> str:
        """Run a command in a terminal of its own, as a user would type it; return what the terminal shows."""
        spawn = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
        done = self.run(sys.executable, "-c", spawn, *command, env=env, timeout_s=timeout_s)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def script(self, text: str, *options: str, name: str = "job.sh", timeout_s: float = 60, **more: str) -> str:
        """Submit a batch script, wait for its end, and return what it printed."""
        path = self.folder / name
        path.write_text("#!/bin/bash\n" + text)
        output = self.folder / (name + ".out")
        job = self.submit(path, f"--output={output}", *options, env=more)
        code = self.wait(job, timeout_s)
        printed = output.read_text() if output.exists() else ""
        assert code == 0, f"job {job} ended with {code}\n{printed}"
        return printed

    def submit(self, script: Path, *options: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
        """Submit a batch script and return the job's id."""
        done = self.run("sbatch", "--parsable", *options, str(script), env=env, cwd=cwd or self.folder)
        assert done.returncode == 0, f"sbatch: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def ended(self, job: str) -> int | None:
        """Return the exit code of a job, 128 + n after signal n; None: it has not ended."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job)
        assert shown.returncode == 0, shown.stderr
        words = dict(word.partition("=")[::2] for word in shown.stdout.split())
        if words["JobState"] in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
            return None
        code, number = map(int, words["ExitCode"].split(":"))
        return code or (128 + number if number else int(words["JobState"] != "COMPLETED"))

    def wait(self, job: str, timeout_s: float = 60) -> int:
        """Wait for the end of a job and return its exit code. ``sbatch --wait`` looks after 2, 10, 18 ... seconds."""
        until = time.monotonic() + timeout_s
        while (code := self.ended(job)) is None:
            assert time.monotonic() < until, f"job {job} has not ended after {timeout_s:g} s\n{self.logs()}"
            time.sleep(0.2)
        return code

    def logs(self) -> str:
        """Return the ends of the daemons' logs, for a test that fails."""
        return "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(self.folder.glob("*.log")))


def missing() -> str:
    """Return why no cluster can be started here; empty when it can."""
    lacking = [name for name in PROGRAMS if not shutil.which(name)]
    return f"{', '.join(lacking)} not installed (apt-get install slurm-wlm)" if lacking else ""


@contextmanager
def slurm_cluster(*, kill_wait: int = 3, more: str = "") -> Iterator[Slurm]:
    """Run a cluster for the time of a block; its jobs and daemons end with it.

    Args:
        kill_wait: seconds between TERM and KILL when a job is at its limit.
        more: further lines of slurm.conf.
    """
    folder = Path(tempfile.mkdtemp(prefix="megads-slurm-"))
    # Programs that a user would start in a job find no trace of this process's own launcher.
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    cluster = Slurm(folder, folder / "slurm.conf", env | {"SLURM_CONF": str(folder / "slurm.conf")})
    _write_conf(cluster, kill_wait, more)
    try:
        _start(cluster)
        yield cluster
    finally:
        _stop(cluster)
        shutil.rmtree(folder, ignore_errors=True)


def _write_conf(cluster: Slurm, kill_wait: int, more: str) -> None:
    host = socket.gethostname().split(".")[0]
    ports = _free_ports(1 + len(NODES))
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} RealMemory=2000 State=UNKNOWN"
        for name, port in zip(NODES, ports[1:], strict=True)
    )
    (cluster.folder / "state").mkdir()
    for name in NODES:
        (cluster.folder / f"spool-{name}").mkdir()
    cluster.conf.write_text(
        _CONF.format(
            host=host,
            user=_user(),
            ports=ports,
            folder=cluster.folder,
            kill_wait=kill_wait,
            more=more,
            nodes=nodes,
            names=",".join(NODES),
        )
    )


def _user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def _free_ports(count: int) -> list[int]:
    """Return ports below the kernel's own range, so that no connection takes one before the daemons do."""
    found: list[int] = []
    start = 17000 + (os.getpid() * 7) % 10000
    for port in range(start, start + 1000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} free ports from {start} on")


def _start(cluster: Slurm) -> None:
    def daemon(*command: str) -> None:
        log = (cluster.folder / f"{command[0]}.out").open("ab")
        # A session of its own: Ctrl-C at the tests must not end it before its jobs.
        cluster.daemons.append(
            subprocess.Popen(
                [shutil.which(command[0]) or command[0], *command[1:]],
                env=cluster.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        )
        log.close()

    daemon("slurmctld", "-D", "-f", str(cluster.conf))
    for name in NODES:
        daemon("slurmd", "-D", "-N", name, "-f", str(cluster.conf))
    until = time.monotonic() + 60
    while time.monotonic() < until:
        shown = cluster.run("sinfo", "-h", "-N", "-o", "%N %T").stdout.split("\n")
        if [f"{name} idle" for name in NODES] == sorted(line for line in shown if line):
            return
        if any(process.poll() is not None for process in cluster.daemons):
            break
        time.sleep(0.1)
    outputs = "".join(path.read_text() for path in cluster.folder.glob("*.out"))
    raise AssertionError(f"SLURM did not start:\n{outputs}\n{cluster.logs()}")


def _stop(cluster: Slurm) -> None:
    """End jobs first: their processes are not the daemons' children that a signal would reach."""
    with suppress(subprocess.TimeoutExpired):
        cluster.run("scancel", "--signal=KILL", "--full", f"--user={_user()}", timeout_s=10)
        cluster.run("scancel", f"--user={_user()}", timeout_s=10)
        until = time.monotonic() + 8
        while time.monotonic() < until and cluster.run("squeue", "-h", timeout_s=5).stdout.strip():
            time.sleep(0.1)
    steps = _stepd_children(cluster)
    for process in cluster.daemons:
        process.send_signal(signal.SIGTERM)
    for process in cluster.daemons:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pid in steps:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _stepd_children(cluster: Slurm) -> list[int]:
    """Return the processes whose environment names this cluster's configuration file."""
    mark = f"SLURM_CONF={cluster.conf}".encode()
    daemons = {process.pid for process in cluster.daemons} | {os.getpid()}
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if int(path.parent.name) not in daemons and mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def main(arguments: list[str]) -> int:
    """Run the command after ``--`` with a cluster around it."""
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    with slurm_cluster() as cluster:
        return subprocess.run(command, env=cluster.env).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
