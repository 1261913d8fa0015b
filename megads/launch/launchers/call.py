"""What every launcher is given, and what it gives back."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from megads.config.machine_facts import Facts
from megads.errors import LaunchError
from megads.launch.launchers.cpu_bind import FREE, Binding, cpus_per_host
from megads.launch.schedulers.allocation import Allocation, is_here

HOSTS_FILE = "hosts"


@dataclass(frozen=True)
class Call:
    """Everything that a launcher may look at; building a command reads nothing else."""

    allocation: Allocation
    command: tuple[str, ...]  # of a rank
    env: Mapping[str, str]  # that the launch happens in
    added: Mapping[str, str]  # what ranks get besides
    facts: Facts
    binding: Binding
    folder: Path  # for files that the launcher reads
    python: str  # the interpreter of launchers that are written in Python

    @property
    def local(self) -> bool:
        """Whether all ranks run on this host."""
        hosts = self.allocation.hosts
        return len(hosts) == 1 and is_here(hosts[0], self.env)

    @property
    def cpus(self) -> int:
        """CPUs of a host as far as the scheduler says, else 0."""
        return cpus_per_host(self.env)

    def host_file(self, line: str = "{host}", name: str = HOSTS_FILE) -> tuple[str, dict[str, str]]:
        """Return the path of a file with one host a line, and the file itself."""
        path = str((self.folder / name).absolute())
        return path, {path: "".join(line.replace("{host}", host) + "\n" for host in self.allocation.hosts)}


@dataclass(frozen=True)
class Start:
    """The command of a launcher and what it needs around it."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Launcher:
    """One way to start ranks."""

    name: str  # in LAUNCH_WITH
    build: Callable[[Call], Start]
    # In which a process finds its rank and its local rank, and more that would mislead what it starts.
    numbers: str = "RANK LOCAL_RANK"
    remote: bool = True  # it reaches other hosts
    job: tuple[str, str] = ("", "")  # what it has to be inside of, with its article, and the variable that tells
    forwards_signals: bool = True  # ranks get a SIGUSR1 that it gets
    in_place: bool = False  # the rank takes the place of this process

    @property
    def rank(self) -> str:
        """The variable that holds the rank."""
        return self.numbers.split()[0]

    @property
    def local_rank(self) -> str:
        """The variable that holds the local rank."""
        return self.numbers.split()[1]

    def require_job(self, env: Mapping[str, str]) -> None:
        """Refuse to start ranks outside of a job; the launcher would wait for one, or ask for hosts of its own.

        Raises:
            LaunchError: the launcher belongs to a scheduler and this is none of its jobs.
        """
        title, variable = self.job
        if variable and not env.get(variable):
            raise LaunchError(
                f"LAUNCH_WITH={self.name} starts ranks inside {title}, and {variable} is not set; "
                "submit a job, or use LAUNCH_WITH=auto"
            )


LONGEST_WORD = 128 * 1024 - 1
"""Bytes of one word of a command or one variable that Linux hands to a program (MAX_ARG_STRLEN)."""


def refuse_long_words(name: str, words: Iterable[str], env: Mapping[str, str]) -> None:
    """Refuse what the kernel would not start, which says no more than "Argument list too long".

    Args:
        words: of its command, and of commands that it is known to start in turn.

    Raises:
        LaunchError: one word or one variable is too long.
    """
    longest = max([*words, *(f"{name}={value}" for name, value in env.items())], key=lambda word: len(word.encode()))
    if (size := len(longest.encode())) > LONGEST_WORD:
        raise LaunchError(
            f"LAUNCH_WITH={name} needs an argument of {size} bytes ({longest[:40]}...) to start ranks on these "
            f"hosts, and Linux allows {LONGEST_WORD}; use fewer hosts (NHOSTS), or another LAUNCH_WITH"
        )


def rank_words(command: Sequence[str], local_rank: str = "", cores: Sequence[str] = ()) -> tuple[str, ...]:
    """Return ``command`` in a shell that ignores SIGUSR1 and binds itself to the cores of its local rank.

    Starters reset signals for their ranks. A stop request that comes before a rank has its
    handler must not kill it (the stop file is still there then), so it starts by ignoring it.

    Args:
        local_rank: the variable that holds its number on the host.
        cores: of each local rank; empty: it is not bound here.
    """
    script = 'trap "" USR1; exec "$@"'
    if cores:
        lists = " ".join(shlex.quote(each) for each in cores)
        script = (
            f'trap "" USR1; n=${local_rank}; for c in {lists}; do [ "$n" -eq 0 ] && break; n=$((n-1)); done; '
            'exec taskset -c "$c" "$@"'
        )
    return ("sh", "-c", script, "sh", *command)


def cores_to_set(call: Call) -> tuple[str, ...]:
    """Return the cores that :func:`rank_words` binds to, for starters without words of their own for that.

    Raises:
        LaunchError: there are some, and no ``taskset``.
    """
    if call.binding.cores and not shutil.which("taskset", path=call.env.get("PATH", "")):
        raise LaunchError("binding ranks to cores needs taskset (util-linux), which is not on PATH; or CPU_BIND=none")
    return call.binding.cores


def agents_of(call: Call, command: Sequence[str]) -> Call:
    """Return the call that starts ``command`` once on every host, bound to nothing."""
    allocation = call.allocation
    once = Allocation(allocation.scheduler, allocation.hosts, 1, allocation.job_id, allocation.spare)
    return replace(call, allocation=once, command=tuple(command), binding=FREE)
