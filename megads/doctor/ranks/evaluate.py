"""What rank 0 makes of everybody's reports: plain data, so that a test can try ten thousand ranks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from megads.doctor.ranks.collectives import FACTORS
from megads.doctor.ranks.host_groups import ranks_by, ranks_by_host
from megads.monitor.check_stages import Verdict, some, which_ranks
from megads.text.plural import plural
from megads.text.units import size

MARKED, BROKEN = 0.5, 0.1
"""Of the median: slower is worth a note, and a failure."""

CLOCK_S = 5.0
LITTLE_DISK = 2**30
MOST_LINES = 12

Report = Mapping[str, Any]


def meeting(reports: Sequence[Report], expected_hosts: Sequence[str], address: str) -> Verdict:
    """Say how long meeting took, and which hosts of the allocation have no rank."""
    hosts = [report["host"] for report in reports]
    slowest = max(range(len(reports)), key=lambda rank: reports[rank]["connect_s"])
    text = (
        f"{plural(len(reports), 'rank')} on {plural(len(set(hosts)), 'host')} joined at {address}; slowest "
        f"{reports[slowest]['connect_s']:.2f} s, {which_ranks([slowest], hosts)}; "
        f"round trip {statistics.median(report['round_trip_s'] for report in reports) * 1e3:.2f} ms"
    )
    data = {"hosts": {host: list(ranks) for host, ranks in ranks_by_host(hosts).items()}, "address": address}
    short = {host.split(".")[0] for host in hosts}
    empty = [host for host in expected_hosts if host.split(".")[0] not in short]
    if empty and len(short) < len(expected_hosts):
        return Verdict("failed", f"no rank runs on {some(empty)}; {text}", data=data)
    sizes = {host: len(ranks) for host, ranks in ranks_by_host(hosts).items()}
    notes: tuple[str, ...] = ()
    if len(set(sizes.values())) > 1:
        each = [f"{count} on {host}" for host, count in sizes.items()]
        notes = (f"hosts have different rank counts: {some(each)}",)
    return Verdict("ok", text, notes=notes, data=data)


def versions(reports: Sequence[Report], hosts: Sequence[str]) -> Verdict:
    """Say which versions differ; differences of paths and of the environment are noted."""
    wrong = _differences([report["versions"] for report in reports], hosts)
    notes = _differences([report["paths"] for report in reports], hosts)
    variables = _differences([report["environment"] for report in reports], hosts)
    usual = _usual([report["versions"] for report in reports])
    text = ", ".join(f"{name} {value}" for name, value in usual.items() if value)
    data = {"versions": usual, "environment": _usual([report["environment"] for report in reports])}
    if wrong:
        return Verdict("failed", "; ".join(wrong[:MOST_LINES]), notes=(*notes, *variables), data=data)
    return Verdict("ok", text, notes=(*notes, *variables), data=data)


def _usual(values: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the most common value of every name."""
    names = dict.fromkeys(name for each in values for name in each)
    return {name: statistics.mode(each.get(name, "") for each in values) for name in names}


def _differences(values: Sequence[Mapping[str, str]], hosts: Sequence[str]) -> list[str]:
    """Return a line for every name whose value is not the same on all ranks."""
    lines = []
    for name, common in _usual(values).items():
        others = ranks_by({each.get(name, "")} - {common} for each in values)
        for value, ranks in list(others.items())[:MOST_LINES]:
            shown = f"{name} {value}" if value else f"no {name}"
            lines.append(f"{shown:.200} on {which_ranks(ranks, hosts)}, {common or 'none'!s:.200} on the others")
    return lines


def clocks(lags: Sequence[float], hosts: Sequence[str]) -> Verdict:
    """Say whose clock is not rank 0's, as far as the time of a message lets it be seen."""
    skewed = [rank for rank, lag in enumerate(lags) if abs(lag) > CLOCK_S]
    worst = max(range(len(lags)), key=lambda rank: abs(lags[rank]))
    seen = f"largest difference to rank 0 {lags[worst]:+.3f} s with the message, {which_ranks([worst], hosts)}"
    data = {"largest_s": lags[worst]}
    if skewed:
        return Verdict("failed", f"clocks differ: {which_ranks(skewed, hosts)}; {seen}", data=data)
    return Verdict("ok", seen if len(lags) > 1 else "one rank", data=data)


def names(reports: Sequence[Report], hosts: Sequence[str], master: str) -> Verdict:
    """Say where names resolve slowly, or to something that other hosts cannot reach."""
    several = len({report["boot"] for report in reports}) > 1
    notes = []
    slow = [rank for rank, report in enumerate(reports) if report["resolve_s"] > 1.0]
    if slow:
        notes.append(f"MASTER_ADDR={master} took more than 1 s to resolve on {which_ranks(slow, hosts)}")
    local = [rank for rank, report in enumerate(reports) if _is_loopback(report["own"]) and not report["interface"]]
    if several and local:
        interfaces = some(reports[local[0]]["interfaces"]) or "none but lo"
        notes.append(
            f"the host's own name resolves to {reports[local[0]]['own'] or 'nothing'} on "
            f"{which_ranks(local, hosts)}, which "
            f"other hosts cannot reach; if gloo fails, set GLOO_SOCKET_IFNAME to one of {interfaces}"
        )
    reached = sorted({report["master"] for report in reports})
    text = f"MASTER_ADDR={master} is {some(reached)}" if master else "one rank needs no address"
    return Verdict("ok", text, notes=tuple(notes), data={"master": reached})


def _is_loopback(address: str) -> bool:
    return not address or address.startswith("127.") or address == "::1"


def devices(reports: Sequence[Report], hosts: Sequence[str]) -> Verdict:
    """Say which ranks share a device, and whose memory somebody else uses."""
    places = zip(hosts, reports, strict=True)
    users = ranks_by([(host, report["identity"])] if report["identity"] else [] for host, report in places)
    shared = {key: ranks for key, ranks in users.items() if len(ranks) > 1}
    names = ranks_by([report["name"]] for report in reports)
    free = min(report["free"] for report in reports)
    text = f"{some(list(names))}: {len(users) or len(reports)} for {plural(len(reports), 'rank')}"
    if list(names) == ["cpu"]:
        text = f"cpu: {plural(len(reports), 'rank')}"
    text += f", at least {size(free)} free"
    data = {"names": list(names), "least_free_bytes": free}
    if shared:
        each = [f"{which_ranks(ranks, hosts)} all use device {name}" for (_, name), ranks in shared.items()]
        advice = "start fewer ranks per host (NGPU_PER_HOST), or give every rank its own (CUDA_VISIBLE_DEVICES)"
        return Verdict("failed", f"{'; '.join(each[:MOST_LINES])}; {advice}", data=data)
    notes = []
    for name in list(names)[1:]:
        notes.append(f"{name} on {which_ranks(names[name], hosts)}, {next(iter(names))} on rank 0")
    used = [rank for rank, each in enumerate(reports) if each["identity"] and each["free"] < 0.9 * each["total"]]
    if used:
        notes.append(f"memory is in use already, least free {size(free)}: {which_ranks(used, hosts)}")
    return Verdict("ok", text, notes=tuple(notes), data=data)


def products(reports: Sequence[Report], hosts: Sequence[str]) -> Verdict:
    """Say whose matrix products are wrong, and who is slow."""
    wrong = ranks_by(report["wrong"] for report in reports)
    speeds = {rank: report["tflops"] for rank, report in enumerate(reports)}
    middle = statistics.median(speeds.values())
    data = {"median_tflops": middle, "slowest_tflops": min(speeds.values())}
    if wrong:
        each = [f"{problem}: {which_ranks(ranks, hosts)}" for problem, ranks in wrong.items()]
        return Verdict("failed", "; ".join(each[:MOST_LINES]), data=data)
    slow = [rank for rank, speed in speeds.items() if speed < MARKED * middle]
    note = f"less than half the median of {middle:.3g} TFLOP/s: {which_ranks(slow, hosts)}"
    done = ", ".join(reports[0]["dtypes"])
    text = f"{done} right on {plural(len(reports), 'rank')}, median {middle:.3g} TFLOP/s in {reports[0]['timed']}"
    return Verdict("ok", text, notes=(note,) if slow else (), data=data)


def disks(reports: Sequence[Report | None], hosts: Sequence[str], folder: str) -> Verdict:
    """Say which host cannot write the run folder, has little space or is slow. ``None``: a rank that did not look."""
    looked = {hosts[rank]: report for rank, report in enumerate(reports) if report is not None}
    failed: dict[str, list[str]] = {}
    for host, report in looked.items():
        failed.setdefault(report["problem"], []).append(host)
    failed.pop("", None)
    if failed:
        each = [f"{problem} (host {some(there)})" for problem, there in failed.items()]
        return Verdict("failed", "; ".join(each[:MOST_LINES]))
    speeds = {host: report["write_per_s"] for host, report in looked.items()}
    least = min(looked, key=lambda host: looked[host]["free"])
    notes = []
    if looked[least]["free"] < LITTLE_DISK:
        notes.append(f"only {size(looked[least]['free'])} left in {folder} as host {least} sees it")
    full = [host for host, report in looked.items() if report["tmp_free"] < LITTLE_DISK]
    if full:
        notes.append(f"less than {size(LITTLE_DISK)} left in {looked[full[0]]['tmp']} of host {some(full)}")
    slow = marked(speeds, BROKEN)
    if slow:
        notes.append(f"far below the median write speed: host {some(slow)}")
    middle = statistics.median(speeds.values())
    text = f"{folder} from {plural(len(looked), 'host')}: {size(looked[least]['free'])} free, {size(middle)}/s written"
    return Verdict("ok", text, notes=tuple(notes), data={"free": looked[least]["free"], "write_per_s": speeds})


def collectives(reports: Sequence[Report], hosts: Sequence[str], where: str) -> Verdict:
    """Say which collective gave a wrong answer to whom."""
    wrong = ranks_by(report["wrong"] for report in reports)
    if wrong:
        each = [f"{problem}, on {which_ranks(ranks, hosts)}" for problem, ranks in wrong.items()]
        more = f" (and {len(each) - 1} more)" if len(each) > 1 else ""
        return Verdict("failed", f"{each[0]}{more}", details=tuple(each[1:MOST_LINES]), data={"wrong": each[:100]})
    lacks = list(dict.fromkeys(each for report in reports for each in report.get("lacks", ())))
    notes = (f"the backend does not offer {some(lacks)}",) if lacks else ()
    return Verdict("ok", where, notes=notes)


def bandwidth(teams: Mapping[str, Sequence[Sequence[Any]]], num_ranks: int, what: str) -> Verdict:
    """Return a table of bandwidth by collective and size, and mark the teams that are slow.

    ``teams`` has the rows of :func:`megads.doctor.ranks.collectives.measure` by the name of a team, such as its
    host; ``what`` a team is. The bus bandwidth needs the ``num_ranks`` of a team.
    """
    by_key: dict[tuple[str, int], dict[str, float]] = {}
    for name, rows in teams.items():
        for collective, num_bytes, seconds in rows:
            by_key.setdefault((collective, num_bytes), {})[name] = seconds
    data = [_row(*key, times, num_ranks) for key, times in by_key.items()]
    largest = next(row for row in data if row["bytes"] == max(each["bytes"] for each in data))
    text = f"{plural(len(teams), what)}; " if what else ""
    text += f"{largest['collective']} of {size(largest['bytes'])}: {size(largest['bus_per_s'])}/s bus"
    times = by_key[largest["collective"], largest["bytes"]]
    speeds = {name: largest["bytes"] / seconds for name, seconds in times.items()}
    return _with_outliers(text, speeds, tuple(_table(data)), data)


def _row(collective: str, num_bytes: int, times: Mapping[str, float], num_ranks: int) -> dict[str, Any]:
    """Return one row of the table: the median over teams, and the slowest team."""
    seconds = statistics.median(times.values())
    slowest = max(times, key=lambda name: times[name])
    return {
        "collective": collective,
        "bytes": num_bytes,
        "seconds": seconds,
        "algorithmic_per_s": num_bytes / seconds,
        "bus_per_s": num_bytes / seconds * FACTORS[collective](num_ranks),
        "slowest": slowest,
        "slowest_seconds": times[slowest],
    }


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"{'collective':<16}{'size':>10}{'time':>12}{'algorithmic':>15}{'bus':>15}"
    for row in rows:
        slow = row["slowest_seconds"] > row["seconds"] / MARKED
        yield (
            f"{row['collective']:<16}{size(row['bytes']):>10}{row['seconds'] * 1e3:>9.3g} ms"
            f"{size(row['algorithmic_per_s']):>13}/s{size(row['bus_per_s']):>13}/s"
            + (f"  {row['slowest']}: {row['slowest_seconds'] * 1e3:.3g} ms" if slow else "")
        )


def pairs(pairs: Mapping[str, float], details: tuple[str, ...], text: str, data: Any) -> Verdict:
    """Mark the pairs of ranks that are slow against the median. ``pairs``: name -> bytes a second."""
    if pairs:
        middle = statistics.median(pairs.values())
        text += f"; {plural(len(pairs), 'pair')} of neighbours, median {size(middle)}/s each way"
    return _with_outliers(text, pairs, details, data)


def _with_outliers(text: str, speeds: Mapping[str, float], details: tuple[str, ...], data: Any) -> Verdict:
    broken, slow = marked(speeds, BROKEN), marked(speeds, MARKED)

    def shown(names: Sequence[str]) -> str:
        return some([f"{name} ({size(speeds[name])}/s)" for name in names])

    if broken:
        middle = statistics.median(speeds.values())
        return Verdict(
            "failed",
            f"far below the median of {size(middle)}/s: {shown(broken)}; {text}",
            details=details,
            data=data,
        )
    notes = (f"slow, below half the median: {shown(slow)}",) if slow else ()
    return Verdict("ok", text, notes=notes, details=details, data=data)


def marked(speeds: Mapping[str, float], part: float) -> list[str]:
    """Return the names whose speed is below ``part`` of the median (of two: of the faster one), the slowest first."""
    if len(speeds) < 2:
        return []
    limit = part * statistics.median_high(list(speeds.values()))
    return sorted((name for name, speed in speeds.items() if speed < limit), key=lambda name: speeds[name])
