"""The stages of the check in order: each can hang or fail only for what the ones before have not shown to be right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from megads.doctor.ranks import checks, evaluate
from megads.doctor.ranks.checks import Rank
from megads.doctor.ranks.host_groups import Place, neighbours, places, ranks_by_host
from megads.doctor.ranks.protocol import Stage, StageProtocol
from megads.monitor.check_stages import Verdict

MOST_FOR_GLOO = 512
"""Ranks; gloo keeps a connection between every two of them."""


def stages_of(rank: Rank, conduct: StageProtocol, expected_hosts: Sequence[str]) -> list[Stage]:
    """Return the stages for this rank.

    Args:
        rank: this rank.
        conduct: the protocol, whose names of hosts the first stage replaces by what ranks report.
        expected_hosts: of the allocation.
    """

    def meeting(reports: list[dict[str, Any]]) -> Verdict:
        conduct.hosts[:] = [report["host"] for report in reports]
        return evaluate.judge_meeting(reports, expected_hosts, rank.meeting.address)

    def hear(answer: dict[str, Any]) -> None:
        node, pairs = tuple(answer["node"]), tuple(tuple(ranks) for ranks in answer["pairs"])
        rank.place = Place(node, pairs, answer["num_hosts"])

    hosts = conduct.hosts
    master = rank.env.get("MASTER_ADDR", "") if rank.info.world_size > 1 else ""
    folder = str(rank.folder)
    return [
        Stage(
            "store",
            partial(checks.report_meeting, rank),
            meeting,
            tell=lambda reports: [asdict(place) for place in places([report["host"] for report in reports])],
            hear=hear,
        ),
        Stage("versions", partial(checks.report_versions, rank), lambda found: evaluate.judge_versions(found, hosts)),
        Stage("clocks", lambda: _lag(conduct), lambda found: evaluate.judge_clocks(found, hosts)),
        Stage(
            "addresses", partial(checks.report_names, rank), lambda found: evaluate.judge_names(found, hosts, master)
        ),
        Stage("devices", partial(checks.claim_device, rank), lambda found: evaluate.judge_devices(found, hosts)),
        Stage(
            "products",
            partial(checks.multiply, rank),
            lambda found: evaluate.judge_products(found, hosts),
            needs=("devices",),
        ),
        Stage("disk", partial(checks.try_disk, rank), lambda found: evaluate.judge_disks(found, hosts, folder)),
        *_groups(rank, conduct),
    ]


def _lag(conduct: StageProtocol) -> float:
    return 0.0 if conduct.rank == 0 else conduct.lag_s


def _groups(rank: Rank, conduct: StageProtocol) -> list[Stage]:
    """Return the stages in which ranks meet in groups, from the smallest to the largest."""
    hosts, world_size = conduct.hosts, rank.info.world_size
    few = world_size <= MOST_FOR_GLOO
    gloo = "all ranks" if few else f"not used: {world_size} ranks, and each would keep a connection to each other"

    def group(name: str, work: Any, where: str) -> Stage:
        return Stage(
            name,
            work,
            lambda found: evaluate.judge_collectives(found, hosts, where),
            meets=True,
            needs=("devices",) if name == "gloo" else ("devices", "gloo"),
        )

    def speed(name: str, work: Any, verdict: Any, needs: str) -> Stage:
        return Stage(name, work, verdict, meets=True, needs=(needs,))

    return [
        group("gloo", partial(checks.join_gloo if few else checks.join_default, rank), gloo),
        group("backend", partial(checks.check_alone, rank), "every rank alone on its device"),
        group("host", partial(checks.check_node, rank), "every host's ranks among themselves"),
        Stage(
            "host pairs",
            partial(_all_rounds, rank),
            lambda found: _if_several(evaluate.judge_collectives(found, hosts, "every host with two others"), hosts),
            meets=True,
            needs=("devices", "gloo"),
        ),
        group("all ranks", partial(checks.check_all, rank), "every collective, every dtype"),
        speed("speed: host", partial(checks.time_node, rank), lambda found: _host_speed(found, hosts), "host"),
        speed("speed: pairs", partial(checks.time_pairs, rank), lambda found: _pair_speed(found, hosts), "host pairs"),
        speed("speed: all", partial(checks.time_all, rank), lambda found: _all_speed(found, hosts), "all ranks"),
        group("as a run", partial(checks.join_as_a_run, rank), "the groups of a run can be made"),
    ]


def _if_several(verdict: Verdict, hosts: Sequence[str]) -> Verdict:
    return verdict if len(set(hosts)) > 1 else Verdict("skipped", "one host")


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
    found = evaluate.judge_bandwidth(teams, max(sizes), "host")
    pairs = {
        f"ranks {first} and {second} (host {hosts[first]})": speed
        for report in reports
        for first, second, speed in report["pairs"]
    }
    if found.status == "failed":
        return found
    both = evaluate.judge_pairs(pairs, found.details, found.text, {"hosts": found.data, "pairs_per_s": pairs})
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
    return evaluate.judge_bandwidth(teams, ranks, "pair of hosts")


def _all_speed(reports: Sequence[Sequence[Any]], hosts: Sequence[str]) -> Verdict:
    if len(set(hosts)) == 1:
        return Verdict("skipped", "one host")
    return evaluate.judge_bandwidth({"all ranks": reports[0]}, len(hosts), "")
