"""The hosts that a run is planned for, and how many of them it uses where its batch cannot be shared out over all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import gcd

from megads.cluster.machine import count_accelerators
from megads.config.derive import BY_USER
from megads.config.machine_facts import Facts
from megads.config.rules.advice import Attempt, Refused
from megads.config.schedule.batches import BatchSchedule
from megads.config.schema import RunConfig
from megads.config.sizes import model_degree
from megads.config.sources.presets import read_machine
from megads.config.sources.resolve import Resolved, rank_of
from megads.errors import ConfigError, MegadsError
from megads.launch.preflight.checkpoint_start import find_start_point
from megads.launch.request import HostFit, TrainRequest, folder_of_request, resolve_request
from megads.launch.schedulers.allocation import Allocation

RULES_OF_COUNTS = ("ranks", "data", "batch", "_batch", "_ramp")
"""Rules that another number of hosts may keep."""


@dataclass(frozen=True)
class RunHosts:
    """The hosts that a run is planned for: those of this job, or of another one."""

    machine: str  # whose facts and settings hold
    count: Callable[[RunConfig], int]  # returns how many; its argument is resolved for NHOSTS hosts, or one
    allocate: Callable[[RunConfig, Facts], Allocation]


@dataclass(frozen=True)
class PlannedRun:
    """Settings of a run that hold together on its hosts."""

    asked: Resolved  # the settings as given, before any value was derived
    resolved: Resolved  # the derived settings, which keep every rule
    allocation: Allocation
    facts: Facts
    vocab_size: int  # of the tokenizer; 0 if there is none
    attempt: Attempt  # tries a change of the settings, for advice

    @property
    def run(self) -> RunConfig:
        """The derived settings."""
        return self.resolved.run


def on_hosts_that_fit(
    request: TrainRequest,
    where_of: Callable[[TrainRequest], RunHosts],
    plan: Callable[[TrainRequest, RunHosts], PlannedRun],
    *,
    submits: bool = False,
) -> tuple[TrainRequest, PlannedRun]:
    """Plan a run on all hosts of its job, or else on as many as can share its batch; the others are spare.

    The second only where ``FIT_HOSTS`` says so, nobody gave NHOSTS, and the ranks are to be started. Returned are
    the run, and the request with the number of hosts that it uses.

    Args:
        submits: whether the run starts in a job of its own, whatever job this process is in.

    Raises:
        MegadsError: the first rule that the settings break on all hosts.
    """
    request = replace(request, fit=None)
    try:
        return request, plan(request, where_of(request))
    except Refused as refused:
        if request.started or refused.problem.rule not in RULES_OF_COUNTS:
            raise
        fitted = _fitted(request, where_of, plan, refused)
        if fitted is None:
            raise
        fewer, planned = fitted
        if _is_allowed(fewer, planned, submits):
            return fewer, planned
        used, hosts = len(planned.allocation.hosts), where_of(request).count(planned.asked.run)
        raise ConfigError(f"{refused}, or FIT_HOSTS=always, which uses {used} of these {hosts} hosts") from None


def _fitted(
    request: TrainRequest,
    where_of: Callable[[TrainRequest], RunHosts],
    plan: Callable[[TrainRequest, RunHosts], PlannedRun],
    refused: Refused,
) -> tuple[TrainRequest, PlannedRun] | None:
    """Return the run on the largest number of hosts that keeps every rule, None where there is none."""
    where = where_of(request)
    asked = resolve_request(request, where.machine)
    hosts = where.count(asked.run)
    if asked.run.launch.num_hosts or asked.run.launch.fit_hosts == "never" or hosts == 1:
        return None
    facts = read_machine(asked.run.machine, request.root).facts
    known = asked.run.launch.ranks_per_host or facts.ranks_per_host or count_accelerators(request.env)
    per_host = where.allocate(asked.run, facts).ranks_per_host if known else 0
    for count in counts_to_try(asked, hosts, per_host):
        note = (
            f"{count} of {hosts} hosts are used, {hosts - count} spare: {refused.problem.text}; NHOSTS=N or "
            "FIT_HOSTS=never chooses otherwise"
        )
        fewer = replace(request, fit=HostFit(count, note))
        try:
            return fewer, plan(fewer, where_of(fewer))
        except MegadsError:
            continue  # the rules of this number of hosts; what is wrong with all of them is reported
    return None


def counts_to_try(asked: Resolved, hosts: int, per_host: int) -> Iterator[int]:
    """Yield every number of hosts below ``hosts`` that may fit, the largest first; rules are checked afterwards.

    Args:
        per_host: ranks on each host; 0: as many as the layout fills.
    """
    run, origins = asked.run, asked.origins
    batch, micro = rank_of(origins["train.global_batch"]), rank_of(origins["train.micro_batch"])
    total = run.train.global_batch if batch >= BY_USER else 0  # of a lower layer it follows from the ranks
    share = total
    if total:
        sizes = BatchSchedule.parse(run.train.rampup_batch_size, total)
        share = gcd(total, sizes.start, sizes.increment) if sizes.is_ramp else total
    unit = run.train.micro_batch if micro >= max(BY_USER, batch) else 1  # else it may be lowered
    degree = model_degree(run)
    for count in range(hosts - 1, 0, -1):
        each = per_host or -(-degree * max(run.parallel.data, 1) // count)
        data, rest = divmod(count * each, degree)
        if data and not rest and run.parallel.data in (0, data) and share % (unit * data) == 0:
            yield count


def _is_allowed(request: TrainRequest, planned: PlannedRun, submits: bool) -> bool:
    """Return whether hosts may stay unused: always, or in a job that continues what an earlier one began."""
    run = planned.run
    if run.launch.fit_hosts == "always" or request.kept is not None:
        return True
    folder = folder_of_request(request, planned.asked.run, run, submits=submits)
    start_point = find_start_point(run, folder.path)
    return start_point is not None and start_point.start.is_own and bool(start_point.taken.progress)
