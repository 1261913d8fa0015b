"""The life of one rank of ``megads doctor``: its options, the stages of the check in order, its last word.

Each stage can hang or fail only for what the ones before have not shown to be right.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from megads.cluster.ranks import RankInfo, find_ranks
from megads.doctor.ranks import checks, evaluate
from megads.doctor.ranks.checks import Rank
from megads.doctor.ranks.host_groups import Place, host_name, neighbours, places, ranks_by_host
from megads.doctor.ranks.protocol import Stage, StageProtocol, meet
from megads.errors import ConfigError, MegadsError
from megads.monitor.check_stages import OPTIONS, RECORD, Finding, Verdict
from megads.monitor.log import failure_text
from megads.monitor.run_state.outcome import Outcome, write_first_outcome, write_outcome
from megads.storage.reading import read_json
from megads.train.fault.failure import leave

SPEAKERS = 4
"""Ranks that may say that rank 0 is not there; all of them would say the same."""
MOST_FOR_GLOO = 512
"""Ranks; gloo keeps a connection between every two of them."""


def main(folder: Path, env: Mapping[str, str]) -> NoReturn:
    """Take part in the check and leave the process.

    Rank 0 prints the stages, keeps them in ``health.jsonl`` of the folder, and writes
    ``outcome.json``: 0 when no stage failed, else 1. The exit code is 0 whenever the outcome
    is written, because starters add pages of their own to any other.
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
        if info.rank == 0:
            with suppress(OSError, MegadsError):  # a full disk
                write_first_outcome(folder, Outcome(1, "", 0, "error", info.rank, host_name(env)))
        leave(_last_words(error, info, host_name(env)), 1)
    leave("", code)


def _last_words(error: BaseException, info: RankInfo, host: str) -> str:
    """Return what this rank reports of ``error``: what all ranks would report, only some do."""
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
    protocol = StageProtocol(meeting.store, info.rank, info.world_size, limit_s, hosts, progress=rank.progress)
    if info.rank != 0:
        protocol.follow(stages_of(rank, protocol, options["hosts"]))
        return 0

    def show(text: str) -> None:
        out.write(text)
        out.flush()

    with (folder / RECORD).open("a", encoding="utf8") as record:

        def report(finding: Finding) -> None:
            record.write(json.dumps(finding.as_dict()) + "\n")
            record.flush()
            show(finding.lines())

        protocol.report, protocol.report_slow = report, show
        findings = protocol.lead(stages_of(rank, protocol, options["hosts"]))
    failed = any(finding.verdict.status == "failed" for finding in findings)
    write_outcome(folder, Outcome(1 if failed else 0, "", 0, "error" if failed else "done"))
    return 0


def _allow_sockets() -> None:
    """Raise the limit of open files to what this user may have: rank 0 keeps two connections of every rank."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some kernels refuse a limit that they name themselves
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def stages_of(rank: Rank, protocol: StageProtocol, expected_hosts: Sequence[str]) -> list[Stage]:
    """Return the stages for this rank.

    The first one replaces the protocol's names of hosts by what ranks report; ``expected_hosts`` are the allocation's.
    Then come stages of each rank alone, then those in which ranks meet in groups, from the smallest to the largest.
    """
    hosts, world_size = protocol.hosts, rank.info.world_size

    def evaluate_meeting(reports: list[dict[str, Any]]) -> Verdict:
        hosts[:] = [report["host"] for report in reports]
        return evaluate.meeting(reports, expected_hosts, rank.meeting.address)

    def receive_place(answer: dict[str, Any]) -> None:
        node, pairs = tuple(answer["node"]), tuple(tuple(ranks) for ranks in answer["pairs"])
        rank.place = Place(node, pairs, answer["num_hosts"])

    def stage(name: str, run: Callable[[Rank], Any], verdict: Callable[..., Verdict], *more: Any, **how: Any) -> Stage:
        return Stage(name, partial(run, rank), lambda found: verdict(found, hosts, *more), **how)

    def group(name: str, run: Callable[[Rank], Any], where: str, *needs: str) -> Stage:
        return stage(name, run, evaluate.collectives, where, is_collective=True, needs=("devices", *needs))

    def speed(name: str, run: Callable[[Rank], Any], verdict: Callable[..., Verdict], needs: str) -> Stage:
        return stage(name, run, verdict, is_collective=True, needs=(needs,))

    few = world_size <= MOST_FOR_GLOO
    gloo = "all ranks" if few else f"not used: {world_size} ranks, and each would keep a connection to each other"
    all_pairs = "every host with two others"
    return [
        Stage(
            "store",
            partial(checks.report_meeting, rank),
            evaluate_meeting,
            answers=lambda reports: [asdict(place) for place in places([report["host"] for report in reports])],
            receive=receive_place,
        ),
        stage("versions", checks.report_versions, evaluate.versions),
        stage("clocks", lambda _: 0.0 if protocol.rank == 0 else protocol.lag_s, evaluate.clocks),
        stage(
            "addresses", checks.report_names, evaluate.names, rank.env.get("MASTER_ADDR", "") if world_size > 1 else ""
        ),
        stage("devices", checks.claim_device, evaluate.devices),
        stage("products", checks.multiply, evaluate.products, needs=("devices",)),
        stage("disk", checks.try_disk, evaluate.disks, str(rank.folder)),
        group("gloo", checks.join_gloo if few else checks.join_default, gloo),
        group("backend", checks.check_alone, "every rank alone on its device", "gloo"),
        group("host", checks.check_node, "every host's ranks among themselves", "gloo"),
        stage("host pairs", _all_rounds, _host_pairs, all_pairs, is_collective=True, needs=("devices", "gloo")),
        group("all ranks", checks.check_all, "every collective, every dtype", "gloo"),
        speed("speed: host", checks.time_node, _host_speed, "host"),
        speed("speed: pairs", checks.time_pairs, _pair_speed, "host pairs"),
        speed("speed: all", checks.time_all, _all_speed, "all ranks"),
        group("as a run", checks.join_as_a_run, "the groups of a run can be made", "gloo"),
    ]


def _host_pairs(reports: Sequence[dict[str, Any]], hosts: Sequence[str], where: str) -> Verdict:
    if len(set(hosts)) == 1:
        return Verdict("skipped", "one host")
    return evaluate.collectives(reports, hosts, where)


def _all_rounds(rank: Rank) -> dict[str, list[str]]:
    """Check the pairs of hosts, one round after another."""
    wrong: list[str] = []
    lacks: list[str] = []
    for number in range(len(rank.place.pairs)):
        found = checks.check_pair(rank, number)
        wrong += found["wrong"]
        lacks += found["lacks"]
    return {"wrong": wrong, "lacks": lacks}


def _host_speed(reports: Sequence[dict[str, Any]], hosts: Sequence[str]) -> Verdict:
    nodes = ranks_by_host(hosts)
    teams = {host: reports[ranks[0]]["rows"] for host, ranks in nodes.items() if reports[ranks[0]]["rows"]}
    if not teams:
        return Verdict("skipped", "one rank per host")
    sizes = {len(nodes[host]) for host in teams}
    found = evaluate.bandwidth(teams, max(sizes), "host")
    pairs = {
        f"ranks {first} and {second} (host {hosts[first]})": speed
        for report in reports
        for first, second, speed in report["pairs"]
    }
    if found.status == "failed":
        return found
    both = evaluate.pairs(pairs, found.details, found.text, {"hosts": found.data, "pairs_per_s": pairs})
    return Verdict(both.status, both.text, (*found.notes, *both.notes), both.details, both.data)


def _pair_speed(reports: Sequence[Sequence[Any]], hosts: Sequence[str]) -> Verdict:
    nodes = list(ranks_by_host(hosts).items())
    rounds = neighbours(len(nodes))
    if not rounds:
        return Verdict("skipped", "one host")
    teams = {}
    for number, pairs in enumerate(rounds):
        for a, b in pairs:
            # The rows are with the first rank of the pair's group.
            leader = min(nodes[a][1][0], nodes[b][1][0])
            teams[f"hosts {nodes[a][0]} and {nodes[b][0]}"] = reports[leader][number]
    ranks = max(len(nodes[a][1]) + len(nodes[b][1]) for pairs in rounds for a, b in pairs)
    return evaluate.bandwidth(teams, ranks, "pair of hosts")


def _all_speed(reports: Sequence[Sequence[Any]], hosts: Sequence[str]) -> Verdict:
    if len(set(hosts)) == 1:
        return Verdict("skipped", "one host")
    return evaluate.bandwidth({"all ranks": reports[0]}, len(hosts), "")
