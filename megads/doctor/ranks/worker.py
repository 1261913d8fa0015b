"""The life of one rank of ``megads doctor``, from its options to its last word."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from megads.cluster.ranks import RankInfo, find_ranks
from megads.doctor.ranks.checks import Rank
from megads.doctor.ranks.host_groups import host_name
from megads.doctor.ranks.protocol import StageProtocol
from megads.doctor.ranks.rendezvous import meet
from megads.doctor.ranks.stages import stages_of
from megads.errors import ConfigError, MegadsError
from megads.monitor.check_stages import OPTIONS, RECORD, Finding
from megads.monitor.log import failure_text
from megads.monitor.run_state.outcome import Outcome, tell_first, write_outcome
from megads.storage.reading import read_json

SPEAKERS = 4
"""Ranks that may say that rank 0 is not there; all of them would say the same."""


def work(folder: Path, env: Mapping[str, str]) -> NoReturn:
    """Take part in the check and leave the process.

    Rank 0 prints the stages, keeps them in ``health.jsonl`` of the folder, and writes
    ``outcome.json``: 0 when no stage failed, else 1. The exit code is 0 whenever the outcome
    is written, because starters add pages of their own to any other.

    Args:
        folder: with ``doctor.json``, the options that the launcher wrote.
        env: this process's environment.
    """
    # A doctor has nothing to save: a stop request ends it.
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    warnings.filterwarnings("ignore", category=FutureWarning)
    _allow_sockets()
    info = find_ranks(env)
    try:
        code = _take_part(folder, env, info)
    except BaseException as error:
        code = 1
        with suppress(OSError, MegadsError):  # nobody reads any more, or a full disk
            if info.rank == 0:
                tell_first(folder, Outcome(1, "", 0, "error", info.rank, host_name(env)))
            sys.stderr.write(_last_words(error, info, host_name(env)))
    with suppress(OSError):  # nobody reads any more
        sys.stderr.flush()
        sys.stdout.flush()
    os._exit(code)


def _last_words(error: BaseException, info: RankInfo, host: str) -> str:
    """Return what this rank says of ``error``: of what all ranks would say alike, some ranks tell."""
    if not isinstance(error, (MegadsError, RuntimeError)):
        return failure_text(info.rank, error)
    of_this_host = isinstance(error, ConfigError) or "resolve" in str(error)
    if info.rank < SPEAKERS or (of_this_host and info.local_rank <= 0):
        return f"[rank {info.rank} host {host}] {(str(error).strip() or type(error).__name__).splitlines()[0]}\n"
    return ""


def read_options(path: Path) -> dict[str, Any]:
    """Return what the launcher wrote for the ranks.

    Raises:
        ConfigError: the file cannot be read here.
    """
    try:
        options: dict[str, Any] = read_json(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{path}: {reason} (host {host_name({})}); run megads doctor in a folder that all hosts see"
        ) from None
    return options


def _take_part(folder: Path, env: Mapping[str, str], info: RankInfo) -> int:
    options = read_options(folder / OPTIONS)
    out = sys.stderr if options["json"] else sys.stdout
    limit_s = float(options["limit_s"])
    meeting = meet(info, env, limit_s)
    rank = Rank(info, env, host_name(env), meeting, limit_s, Path(options["folder"]), float(options["timeout_s"]))
    hosts = [host for host in options["hosts"] for _ in range(options["ranks_per_host"])]
    conduct = StageProtocol(meeting.store, info.rank, info.world_size, limit_s, hosts, progress=rank.progress)
    if info.rank != 0:
        conduct.follow(stages_of(rank, conduct, options["hosts"]))
        return 0

    def say(text: str) -> None:
        out.write(text)
        out.flush()

    with (folder / RECORD).open("a", encoding="utf8") as record:

        def tell(finding: Finding) -> None:
            record.write(json.dumps(finding.as_dict()) + "\n")
            record.flush()
            say(finding.lines())

        conduct.tell, conduct.running = tell, say
        findings = conduct.lead(stages_of(rank, conduct, options["hosts"]))
    failed = any(finding.verdict.status == "failed" for finding in findings)
    write_outcome(folder, Outcome(1 if failed else 0, "", 0, "error" if failed else "done"))
    return 0


def _allow_sockets() -> None:
    """Raise the limit of open files to what this user may have: rank 0 keeps two connections of every rank."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some kernels refuse a limit that they name themselves
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
