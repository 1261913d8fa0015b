"""The protocol of a check on many ranks: rank 0 calls the stages, everybody reports, nobody waits forever.

All of it goes through one store of ``torch.distributed``: a key for every rank and stage, a
counter for every stage, and for each stage one word of rank 0. Nothing here needs the
collectives that are to be checked, and no rank sends or gets more than its own part.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from megads.comm.rendezvous import missing_ranks
from megads.monitor.check_stages import Finding, Task, Verdict, Worker, which_ranks
from megads.monitor.log import failure_text

RUNNING_AFTER_S = 10.0
"""Then a stage that is not finished says for whom it waits; again after twice the time, and so on."""

MOST_ERRORS = 8
"""Different ones that one verdict tells."""

LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")
"""What gloo and NCCL say to ranks that did not fail."""

FEW = 1000
"""Keys of one request to the store."""


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
    """One stage of the check.

    Attributes:
        name: one or two words.
        work: done by every rank; what it returns is sent to rank 0 as JSON.
        judge: called by rank 0 with what every rank returned, in rank order.
        meets: whether ranks wait for each other inside of it. When one fails there, the
            others are left in an unknown state, and nothing more can be checked.
        needs: stages that must be ok before.
        tell: called by rank 0 with the reports; returns what each rank is to hear.
        hear: takes it, on every rank.
    """

    name: str
    work: Callable[[], Any]
    judge: Callable[[list[Any]], Verdict]
    meets: bool = False
    needs: tuple[str, ...] = ()
    tell: Callable[[list[Any]], Sequence[Any]] | None = None
    hear: Callable[[Any], None] | None = None


@dataclass
class StageProtocol:
    """What the protocol needs on one rank.

    Attributes:
        store: that nothing else uses at the same time.
        rank: of this process.
        world_size: how many ranks should come.
        limit_s: on a stage.
        hosts: of the ranks by number, as far as they are known; rank 0 names ranks with it.
        tell: gets every finding, on rank 0.
        running: gets a line about a stage that takes long, on rank 0.
        progress: set by the stages.
        lag_s: the smallest difference so far between this rank's clock and a word of rank 0
            that came in: an upper limit of how far this clock is ahead.
    """

    store: dist.Store
    rank: int
    world_size: int
    limit_s: float
    hosts: list[str] = field(default_factory=list)
    tell: Callable[[Finding], None] = lambda finding: None
    running: Callable[[str], None] = lambda line: None
    progress: Progress = field(default_factory=Progress)
    hand: Worker = field(default_factory=Worker)
    lag_s: float = float("inf")

    def lead(self, stages: Sequence[Stage]) -> list[Finding]:
        """Call the stages one after another and judge them; what rank 0 does."""
        findings: list[Finding] = []
        stopped, lost = "", 0
        for number, stage in enumerate(stages):
            reason = stopped or _unmet(stage, findings)
            if reason:
                finding = Finding(stage.name, Verdict("skipped", reason), 0.0)
                self._say(number, "skip")
            else:
                started = time.monotonic()
                self._say(number, "run")
                reports = self._gather(number, stage)
                finding = Finding(stage.name, self._judge(stage, reports), time.monotonic() - started)
                self._answer(number, stage, reports, finding.verdict)
                lost = reports.count({})
                if any(_is_lost(report) or (stage.meets and "ok" not in report) for report in reports):
                    stopped = f"after {stage.name} failed"
            findings.append(finding)
            self.tell(finding)
        self._say(len(stages), "end")
        # Rank 0 may hold the store: the others are to hear the last word before it goes.
        self._wait(lambda: self.store.add("bye", 0) >= self.world_size - 1 - lost, 2.0)
        return findings

    def follow(self, stages: Sequence[Stage]) -> None:
        """Do what rank 0 calls for, until its last word; what the other ranks do.

        Raises:
            RuntimeError: from torch, when rank 0 is gone or silent.
        """
        for number, stage in enumerate(stages):
            if self._hear(number) == "run":
                self._report(number, self._perform(stage))
                if stage.hear is not None:
                    answer = json.loads(self._get(f"answer/{number}/{self.rank}", 2 * self.limit_s + 60))
                    if answer is not None:
                        stage.hear(answer)
        self._hear(len(stages))
        with suppress(RuntimeError):  # the store may go with rank 0
            self.store.add("bye", 1)

    def _perform(self, stage: Stage) -> dict[str, Any]:
        task = self._start(stage)
        task.done.wait(self.limit_s)
        return self._result(task)

    def _start(self, stage: Stage) -> Task:
        self.progress.step, self.progress.at = 0, ""
        return self.hand.start(stage.work)

    def _result(self, task: Task) -> dict[str, Any]:
        if not task.done.is_set():
            return {"stuck": self.progress.at, "step": self.progress.step, "place": self.hand.place()}
        if task.error is not None:
            text = str(task.error).strip().splitlines() or [""]
            at = f" in {self.progress.at}" if self.progress.at else ""
            return {
                "error": f"{type(task.error).__name__}{at}: {text[0]:.300}",
                "trace": failure_text(self.rank, task.error)[-4000:],
            }
        return {"ok": task.value}

    def _say(self, number: int, word: str) -> None:
        self.store.set(f"go/{number}", json.dumps([word, time.time()]))

    def _hear(self, number: int) -> str:
        word, sent = json.loads(self._get(f"go/{number}", 2 * self.limit_s + 60))
        self.lag_s = min(self.lag_s, time.time() - sent)
        return str(word)

    def _get(self, key: str, limit_s: float) -> bytes:
        self.store.wait([key], timedelta(seconds=limit_s))
        return self.store.get(key)

    def _report(self, number: int, report: dict[str, Any]) -> None:
        self.store.set(f"report/{number}/{self.rank}", json.dumps(report))
        self.store.add(f"count/{number}", 1)

    def _gather(self, number: int, stage: Stage) -> list[dict[str, Any]]:
        """Do rank 0's part of a stage; return everybody's reports in rank order, ``{}`` for who sent none."""
        task = self._start(stage)
        reported = False
        started, say_at = time.monotonic(), RUNNING_AFTER_S
        grace = min(10.0, 1.0 + self.limit_s / 2)

        def all_came() -> bool:
            nonlocal reported, say_at
            waited = time.monotonic() - started
            if not reported and (task.done.is_set() or waited > self.limit_s):
                self._report(number, self._result(task))
                reported = True
            if waited > say_at:
                say_at *= 2
                late = which_ranks(self._missing(number), self.hosts)
                self.running(f"{stage.name:<14} running  {waited:6.1f} s  waiting for {late}\n")
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

    def _judge(self, stage: Stage, reports: list[dict[str, Any]]) -> Verdict:
        trouble = _trouble(reports, self.hosts, self.limit_s)
        return trouble or stage.judge([report["ok"] for report in reports])

    def _answer(self, number: int, stage: Stage, reports: list[dict[str, Any]], verdict: Verdict) -> None:
        """Tell each rank its part; with nothing to tell, tell that, for they wait."""
        if stage.hear is None:
            return
        usable = stage.tell is not None and all("ok" in report for report in reports)
        answers = stage.tell([report["ok"] for report in reports]) if usable and stage.tell else None
        for first in range(1, self.world_size, FEW):
            ranks = range(first, min(first + FEW, self.world_size))
            texts = [json.dumps(answers[rank] if answers else None) for rank in ranks]
            names = [f"answer/{number}/{rank}" for rank in ranks]
            self.store.multi_set(names, texts)  # type: ignore[attr-defined]
        if answers:
            stage.hear(answers[0])


def _unmet(stage: Stage, findings: Sequence[Finding]) -> str:
    """Return why ``stage`` cannot be done; empty if it can."""
    for each in findings:
        if each.stage in stage.needs and each.verdict.status != "ok":
            return f"{each.stage} {'failed' if each.verdict.status == 'failed' else 'was skipped'}"
    return ""


def _is_lost(report: dict[str, Any]) -> bool:
    """Return whether a rank cannot take part any more: it did not report, or hangs."""
    return not report or "stuck" in report


def _trouble(reports: list[dict[str, Any]], hosts: Sequence[str], limit_s: float) -> Verdict | None:
    """Return what to say when not every rank finished the stage."""
    parts: list[str] = []
    details: list[str] = []
    trace = ""
    missing = [rank for rank, report in enumerate(reports) if not report]
    if missing:
        parts.append(f"no answer within {limit_s:g} s from {which_ranks(missing, hosts)}")
    errors: dict[str, list[int]] = {}
    for rank, report in enumerate(reports):
        if "error" in report:
            errors.setdefault(report["error"], []).append(rank)
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


def is_lost_peer(text: str) -> bool:
    """Return whether an error only says that another rank is gone."""
    return any(sign in text for sign in LOST_PEER)
