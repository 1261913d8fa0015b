"""The protocol of a check on many ranks: rank 0 calls the stages, everybody reports, nobody waits forever.

All of it goes through one store of ``torch.distributed``: a key for every rank and stage, a
counter for every stage, and for each stage one word of rank 0. Nothing here needs the
collectives that are to be checked, and no rank sends or gets more than its own part. As in ``megads.comm.rendezvous``
rank 0 listens on the loopback interface where MASTER_ADDR is one, and every key begins with the secret of the launch.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from megads.cluster.ranks import RankInfo
from megads.comm.groups import is_lost_peer
from megads.comm.rendezvous import (
    connect_store,
    holds_store,
    missing_ranks,
    serve_store,
    store_prefix,
    wait_for_listener,
)
from megads.doctor.ranks.host_groups import ranks_by
from megads.errors import LaunchError
from megads.monitor.check_stages import Finding, Task, Verdict, Worker, which_ranks
from megads.monitor.log import failure_text

RUNNING_AFTER_S = 10.0
"""Then a stage that is not finished says for whom it waits; again after twice the time, and so on."""

MOST_ERRORS = 8
"""Different ones that one verdict has."""

FEW = 1000
"""Keys of one request to the store."""
KEYS = "megads-doctor"


@dataclass
class Progress:
    """How far this rank is inside a stage: ``step`` counts, ``at`` names."""

    step: int = 0
    at: str = ""

    def __call__(self, at: str) -> None:
        """Note that ``at`` begins."""
        self.step += 1
        self.at = at


@dataclass(frozen=True)
class Stage:
    """One stage of the check."""

    name: str  # one or two words
    run: Callable[[], Any]  # done by every rank; what it returns is sent to rank 0 as JSON
    evaluate: Callable[[list[Any]], Verdict]  # called by rank 0 with what every rank returned, in rank order
    # Whether ranks wait for each other inside of it. When one fails there, the others are left in an unknown state,
    # and nothing more can be checked.
    is_collective: bool = False
    needs: tuple[str, ...] = ()  # stages that must be ok before
    answers: Callable[[list[Any]], Sequence[Any]] | None = None  # called by rank 0 with the reports: one for each rank
    receive: Callable[[Any], None] | None = None  # takes the answer, on every rank


@dataclass
class StageProtocol:
    """What the protocol needs on one rank."""

    store: dist.Store  # that nothing else uses at the same time
    rank: int  # of this process
    world_size: int  # how many ranks should come
    limit_s: float  # on a stage
    hosts: list[str] = field(default_factory=list)  # by rank, as far as they are known; rank 0 names ranks with it
    report: Callable[[Finding], None] = lambda finding: None  # gets every finding, on rank 0
    report_slow: Callable[[str], None] = lambda line: None  # gets a line about a stage that takes long, on rank 0
    progress: Progress = field(default_factory=Progress)  # set by the stages
    worker: Worker = field(default_factory=Worker)
    # The smallest difference so far between this rank's clock and a word of rank 0 that came in: an upper limit of how
    # far this clock is ahead.
    lag_s: float = float("inf")

    def lead(self, stages: Sequence[Stage]) -> list[Finding]:
        """Call the stages one after another and evaluate them; what rank 0 does."""
        findings: list[Finding] = []
        stopped, lost = "", 0
        for number, stage in enumerate(stages):
            reason = stopped or _unmet(stage, findings)
            if reason:
                finding = Finding(stage.name, Verdict("skipped", reason), 0.0)
                self._announce(number, "skip")
            else:
                started = time.monotonic()
                self._announce(number, "run")
                reports = self._gather(number, stage)
                finding = Finding(stage.name, self._evaluate(stage, reports), time.monotonic() - started)
                self._answer(number, stage, reports)
                lost = reports.count({})
                # A rank that did not report, or hangs, cannot take part any more.
                if any("stuck" in each or not each or (stage.is_collective and "ok" not in each) for each in reports):
                    stopped = f"after {stage.name} failed"
            findings.append(finding)
            self.report(finding)
        self._announce(len(stages), "end")
        # Rank 0 may hold the store: the others need the last word before it goes.
        self._wait(lambda: self.store.add("bye", 0) >= self.world_size - 1 - lost, 2.0)
        return findings

    def follow(self, stages: Sequence[Stage]) -> None:
        """Do what rank 0 calls for, until its last word; what the other ranks do.

        Raises:
            RuntimeError: from torch, when rank 0 is gone or silent.
        """
        for number, stage in enumerate(stages):
            if self._next_word(number) == "run":
                task = self._start(stage)
                task.done.wait(self.limit_s)
                self._send_report(number, self._result(task))
                if stage.receive is not None:
                    answer = json.loads(self._get(f"answer/{number}/{self.rank}", 2 * self.limit_s + 60))
                    if answer is not None:
                        stage.receive(answer)
        self._next_word(len(stages))
        with suppress(RuntimeError):  # the store may go with rank 0
            self.store.add("bye", 1)

    def _start(self, stage: Stage) -> Task:
        self.progress.step, self.progress.at = 0, ""
        return self.worker.start(stage.run)

    def _result(self, task: Task) -> dict[str, Any]:
        if not task.done.is_set():
            return {"stuck": self.progress.at, "step": self.progress.step, "place": self.worker.place()}
        if task.error is not None:
            text = str(task.error).strip().splitlines() or [""]
            at = f" in {self.progress.at}" if self.progress.at else ""
            return {
                "error": f"{type(task.error).__name__}{at}: {text[0]:.300}",
                "trace": failure_text(self.rank, task.error)[-4000:],
            }
        return {"ok": task.value}

    def _announce(self, number: int, word: str) -> None:
        self.store.set(f"go/{number}", json.dumps([word, time.time()]))

    def _next_word(self, number: int) -> str:
        word, sent = json.loads(self._get(f"go/{number}", 2 * self.limit_s + 60))
        self.lag_s = min(self.lag_s, time.time() - sent)
        return str(word)

    def _get(self, key: str, limit_s: float) -> bytes:
        self.store.wait([key], timedelta(seconds=limit_s))
        return self.store.get(key)

    def _send_report(self, number: int, report: dict[str, Any]) -> None:
        self.store.set(f"report/{number}/{self.rank}", json.dumps(report))
        self.store.add(f"count/{number}", 1)

    def _gather(self, number: int, stage: Stage) -> list[dict[str, Any]]:
        """Do rank 0's part of a stage; return everybody's reports in rank order, ``{}`` for who sent none."""
        task = self._start(stage)
        reported = False
        started, report_at = time.monotonic(), RUNNING_AFTER_S
        grace = min(10.0, 1.0 + self.limit_s / 2)

        def all_came() -> bool:
            nonlocal reported, report_at
            waited = time.monotonic() - started
            if not reported and (task.done.is_set() or waited > self.limit_s):
                self._send_report(number, self._result(task))
                reported = True
            if waited > report_at:
                report_at *= 2
                late = which_ranks(self._missing(number), self.hosts)
                self.report_slow(f"{stage.name:<14} running  {waited:6.1f} s  waiting for {late}\n")
            return self.store.add(f"count/{number}", 0) >= self.world_size

        self._wait(all_came, self.limit_s + grace)
        return list(self._reports(number))

    def _wait(self, is_over: Callable[[], bool], limit_s: float) -> None:
        until, pause = time.monotonic() + limit_s, 0.001
        while not is_over() and time.monotonic() < until:
            time.sleep(pause)
            pause = min(2 * pause, 0.1)

    def _missing(self, number: int) -> list[int]:
        return missing_ranks(self.store, f"report/{number}", self.world_size)

    def _reports(self, number: int) -> Iterator[dict[str, Any]]:
        missing = set(self._missing(number)) if self.store.add(f"count/{number}", 0) < self.world_size else set()
        for first in range(0, self.world_size, FEW):
            ranks = range(first, min(first + FEW, self.world_size))
            came = [rank for rank in ranks if rank not in missing]
            texts = dict(zip(came, self.store.multi_get([f"report/{number}/{r}" for r in came]), strict=True))
            yield from (json.loads(texts[rank]) if rank in texts else {} for rank in ranks)

    def _evaluate(self, stage: Stage, reports: list[dict[str, Any]]) -> Verdict:
        failure = _failure(reports, self.hosts, self.limit_s)
        return failure or stage.evaluate([report["ok"] for report in reports])

    def _answer(self, number: int, stage: Stage, reports: list[dict[str, Any]]) -> None:
        """Send each rank its answer; ``null`` where there is none, because they wait."""
        if stage.receive is None:
            return
        usable = all("ok" in report for report in reports)
        answers = stage.answers([report["ok"] for report in reports]) if usable and stage.answers else None
        for first in range(1, self.world_size, FEW):
            ranks = range(first, min(first + FEW, self.world_size))
            texts = [json.dumps(answers[rank] if answers else None) for rank in ranks]
            names = [f"answer/{number}/{rank}" for rank in ranks]
            self.store.multi_set(names, texts)  # type: ignore[attr-defined]
        if answers:
            stage.receive(answers[0])


def _unmet(stage: Stage, findings: Sequence[Finding]) -> str:
    """Return why ``stage`` cannot be done; empty if it can."""
    for each in findings:
        if each.stage in stage.needs and each.verdict.status != "ok":
            return f"{each.stage} {'failed' if each.verdict.status == 'failed' else 'was skipped'}"
    return ""


def _failure(reports: list[dict[str, Any]], hosts: Sequence[str], limit_s: float) -> Verdict | None:
    """Return the verdict when not every rank finished the stage, else None."""
    parts: list[str] = []
    details: list[str] = []
    trace = ""
    missing = [rank for rank, report in enumerate(reports) if not report]
    if missing:
        parts.append(f"no answer within {limit_s:g} s from {which_ranks(missing, hosts)}")
    errors = ranks_by([report["error"]] if "error" in report else [] for report in reports)
    # The reason is what few say and what is not the loss of somebody else.
    for text, ranks in sorted(errors.items(), key=lambda item: (is_lost_peer(item[0]), len(item[1])))[:MOST_ERRORS]:
        (details if trace else parts).append(f"{which_ranks(ranks, hosts)}: {text}")
        trace = trace or reports[ranks[0]]["trace"]
    stuck = {rank: report for rank, report in enumerate(reports) if "stuck" in report}
    if stuck:
        behind = min(report["step"] for report in stuck.values())
        last = [rank for rank, report in stuck.items() if report["step"] == behind]
        ahead = [rank for rank, report in stuck.items() if report["step"] > behind]
        at = f" in {stuck[last[0]]['stuck']}" if stuck[last[0]]["stuck"] else ""
        how = "slowest" if ahead else "still waiting"
        parts.append(f"not finished in {limit_s:g} s, {how}{at}: {which_ranks(last, hosts)}")
        details.append(f"rank {last[0]} is at {stuck[last[0]]['place']}")
        if ahead:
            details.append(f"waiting in {stuck[ahead[0]]['stuck']}: {which_ranks(ahead, hosts)}")
    return Verdict("failed", "; ".join(parts), details=tuple(details), data={"trace": trace}) if parts else None


@dataclass(frozen=True)
class Meeting:
    """Two connections to one store: one for the protocol, one for groups, because each serves one thread at a time.

    ``resolve_s`` and ``connect_s`` are how long the address took to resolve and the store to answer.
    """

    store: dist.Store
    groups: dist.Store
    address: str
    resolve_s: float = 0.0
    connect_s: float = 0.0


def meet(info: RankInfo, env: Mapping[str, str], limit_s: float) -> Meeting:
    """Return this rank's connections to the store of ``MASTER_ADDR`` and ``MASTER_PORT``, which rank 0 holds.

    Under torchrun its agent holds the store, and says so.

    Raises:
        LaunchError: no address, one that does not resolve here, a port that is taken, or nobody there.
    """
    if info.world_size == 1:
        alone = dist.HashStore()
        return Meeting(dist.PrefixStore(KEYS, alone), dist.PrefixStore("groups", alone), "no address")
    host, port = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
    if not host or not port.isdigit():
        raise LaunchError(
            f"MASTER_ADDR={host!r} MASTER_PORT={port!r} must name the rendezvous address; use megads doctor"
        )
    started = time.monotonic()
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise LaunchError(f"MASTER_ADDR={host} does not resolve on this host: {error.strerror or error}") from None
    resolved = time.monotonic()
    holds = holds_store(info.rank, env)
    try:
        if not holds:
            wait_for_listener(host, int(port), started + limit_s)
        # Rank 0 need not be able to reach itself by the name that others know.
        stores = [serve_store(host, int(port), limit_s) if holds else connect_store(host, int(port), limit_s)]
        stores.append(connect_store("127.0.0.1" if holds else host, int(port), limit_s))
    except (OSError, RuntimeError, ValueError) as error:
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        if holds:
            raise LaunchError(f"rank 0 cannot listen on port {port}, start megads doctor again: {text:.200}") from None
        raise LaunchError(
            f"no answer at MASTER_ADDR={host} ({found[0][4][0]}) port {port} within {limit_s:g} s: rank 0 has not "
            f"started there, or a firewall is between ({text:.200})"
        ) from None
    return Meeting(
        dist.PrefixStore(f"{store_prefix(env)}/{KEYS}", stores[0]),
        dist.PrefixStore(f"{store_prefix(env)}/groups", stores[1]),
        f"{host}:{port}", resolved - started, time.monotonic() - resolved,
    )  # fmt: skip
