"""The exact command of a launch: built first, shown, then run; and the variables that must not reach its ranks."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from megads.cluster.ranks import EXPLICIT, TOKEN
from megads.config.run_files import LEASE
from megads.errors import LaunchError

_END = "end-of-file"
BRIEF = 100  # letters of a command on the screen


@dataclass(frozen=True)
class LaunchPlan:
    """A command and the changes to the environment it runs in.

    ``in_place`` means that the command takes the place of the launching process, which is
    possible when there is one rank. ``forwards_signals`` means that the launcher hands a
    SIGUSR1 on to its ranks. ``files`` (path -> text) are written before the command runs:
    a list of ten thousand hosts is too long for a command line. ``private`` is set as ``env``
    is, and never shown: a pasted command makes its own.
    """

    argv: tuple[str, ...]
    env: dict[str, str]  # what is set
    unset: tuple[str, ...] = ()
    in_place: bool = False
    forwards_signals: bool = True
    files: dict[str, str] = field(default_factory=dict)
    private: dict[str, str] = field(default_factory=dict, repr=False)

    def hiding(self, *names: str) -> LaunchPlan:
        """Return the plan with variables that ranks get and nobody is shown."""
        hidden = {name: self.env[name] for name in names if name in self.env}
        shown = {name: value for name, value in self.env.items() if name not in hidden}
        return replace(self, env=shown, private={**self.private, **hidden})

    def line(self) -> str:
        """Return one shell line that does the same when pasted into a terminal."""
        removed = [word for name in self.unset for word in ("-u", name)]
        added = [f"{name}={value}" for name, value in self.env.items()]
        return shlex.join(["env", *removed, *added, *self.argv])

    def brief(self) -> str:
        """Return the command without the changes to the environment, and of long ones the beginning."""
        line = shlex.join([Path(self.argv[0]).name, *self.argv[1:]])
        return line if len(line) <= BRIEF else f"{line[: BRIEF - 3]}..."

    def script(self) -> str:
        """Return shell lines that do the same when pasted: they write :attr:`files`, then run the command.

        Every change to the environment has a line of its own, sorted, so that two plans can be compared.
        """
        folders = sorted({str(Path(path).parent) for path in self.files})
        lines = [shlex.join(["mkdir", "-p", *folders])] if folders else []
        for path, text in self.files.items():
            lines += [f"cat >{shlex.quote(path)} <<'{_END}'", text.rstrip("\n"), _END]
        words = [f"-u {shlex.quote(name)}" for name in self.unset]
        words += [shlex.quote(f"{name}={value}") for name, value in sorted(self.env.items())]
        return "\n".join([*lines, " \\\n  ".join(["env", *words, shlex.join(self.argv)])])

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return ``env`` with the plan's changes."""
        return {name: value for name, value in env.items() if name not in self.unset} | self.env | self.private

    def write_files(self) -> None:
        """Write :attr:`files`; folders that are missing are made, for this user only.

        Raises:
            LaunchError: a file cannot be written.
        """
        for name, text in self.files.items():
            path = Path(name)
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                # A name in a shared temporary folder may be somebody else's link: never write through one.
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
                with open(handle, "w", encoding="utf8") as file:
                    file.write(text)
            except OSError as error:
                raise LaunchError(f"{path}: {error.strerror}; the launcher reads its hosts from this file") from None


IN_PLACE = "MEGADS_IN_PLACE"
"""Set to 1 for a rank that no launcher watches: its own exit code is the run's."""

WATCHED = "MEGADS_WATCHED"
"""Set to 1 for ranks whose launcher reads the run's exit code from outcome.json; all others leave with their own."""

OF_RANKS = (*EXPLICIT, IN_PLACE, WATCHED, TOKEN, LEASE, "MEGADS_NUM_RANKS", "MEGADS_ATTEMPT", "MEGADS_ENDS_AT")
"""What this launcher tells its ranks. Other MEGADS_ variables are a user's."""

ALWAYS_UNSET = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

# What launchers tell their ranks. A user's shell may hold such variables from an earlier
# job, and every launcher hands them on. OMPI_MCA_*, PMIX_MCA_*, PMI_MAX_*, PALS_PMI and the
# like that do not describe a running job are a user's settings and stay.
_OF_LAUNCHERS = re.compile(
    r"MASTER_(ADDR|PORT)|(LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|LOCAL_SIZE|(GROUP|ROLE|CROSS)_\w+|TORCHELASTIC_\w+|"
    r"OMPI_(COMM_WORLD_\w+|UNIVERSE_SIZE|APP_CTX_NUM_PROCS|NUM_APP_CTX|FIRST_RANKS|FILE_LOCATION|COMMAND|ARGV)|"
    r"OMPI_MCA_(ess\w*|orte_\w+|pmix|initial_wdir|shmem_RUNTIME_QUERY_hint)|"
    r"PMI_(?!MAX_|MMAP_|NO_|DEBUG)\w+|PMIX_(?!MCA_)\w+|"
    r"MPI_LOCALN?RANK(ID|S)|HYDI_CONTROL_FD|MV2_COMM_WORLD_\w+|JSM_NAMESPACE_\w+|"
    r"PALS_(RANKID|NODEID|LOCAL_\w+|APID|APINFO|APNUM|DEPTH|SPOOL_DIR|STARTUP_\w+|FD)|FLUX_TASK_\w+|FLUX_JOB_SIZE"
)

# srun, `srun --pty` and batch scripts describe the process that SLURM itself started.
_OF_A_SLURM_STEP = re.compile(
    r"SLURMD_NODENAME|SLURM_(STEP_\w+|STEPID|PROCID|LOCALID|NODEID|TASK_PID|GTIDS|PTY_\w+|SRUN_COMM_\w+|LAUNCH_NODE_IPADDR|UMASK)"
)

_OPTIONS_OF_SRUN = re.compile(
    r"SLURM_(NTASKS\w*|NPROCS|CPUS_PER_TASK|CPU_BIND\w*|DISTRIBUTION|DIST_\w+|HOSTFILE|EXPORT_ENV|HINT|"
    r"LABELIO|KILL_BAD_EXIT|NO_KILL|WAIT|STDOUTMODE|STDERRMODE|STDINMODE|EXCLUSIVE|EXACT|RELATIVE)|SRUN_CPUS_PER_TASK"
)
"""What sbatch was told and srun would take as its own options, as ``SLURM_NTASKS_PER_NODE``."""


def stale_variables(env: Mapping[str, str], *, under_srun: bool) -> set[str]:
    """Return the names in ``env`` that new ranks must not see.

    Args:
        under_srun: whether srun starts the ranks; what the job said to it is then taken back.
    """
    found = {name for name in env if _OF_LAUNCHERS.fullmatch(name) or _OF_A_SLURM_STEP.fullmatch(name)}
    if under_srun:
        found |= {name for name in env if _OPTIONS_OF_SRUN.fullmatch(name)}
    return found | {name for name in OF_RANKS if name in env}
