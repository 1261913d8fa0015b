"""What ``megads plan`` is asked, and the answer: a search and its costs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from megads.cluster.machine import machine_name
from megads.config.sources.resolve import Resolved
from megads.config.tree import value_of
from megads.errors import ConfigError
from megads.launch.request import TrainRequest, resolve_request
from megads.launch.schedulers.time_left import parse_walltime
from megads.monitor.measured import read_measured
from megads.plan.costs.cost import Cost, cost
from megads.plan.places.place import Place, place_of
from megads.plan.search.ask import DP, Ask
from megads.plan.search.hosts import Row, counts, smallest, sweep
from megads.plan.search.search import Candidate, Found, search_for
from megads.plan.time.anchor import anchored
from megads.text.plural import plural

SCALES = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
MOST_TOKENS, MOST_RANKS = 2**53, 10_000_000
BY_DEVICE = "generic"
"""The machine of a device without one."""


@dataclass(frozen=True)
class Options:
    """The options of the command."""

    machine: str = ""
    device: str = ""
    nodes: int | None = None
    ranks: int | None = None
    max_memory: float = 0.9
    tokens: str = ""
    anchor: str = ""


@dataclass(frozen=True)
class Answer:
    """Layouts, the costs of each that is proposed, and the hosts that would be enough where none fits."""

    found: Found
    costs: list[Cost]


@dataclass(frozen=True)
class Question:
    """A question that was understood.

    Attributes:
        num_hosts: 0: a table over numbers of hosts.
        ranks_per_host: of each.
    """

    request: TrainRequest
    options: Options
    place: Place
    machine: str
    resolved: Resolved
    num_hosts: int
    ranks_per_host: int
    notes: tuple[str, ...] = ()

    def ask(self, num_hosts: int = 0, global_batch: int = 0) -> Ask:
        """Return what is searched for, on ``num_hosts`` hosts."""
        hosts = num_hosts or self.num_hosts
        resolved = self.resolved if hosts == self.num_hosts else _resolved(self.request, self.machine, hosts)
        return Ask(resolved, self.place, hosts, self.ranks_per_host, self.options.max_memory, global_batch)

    def cost_of(self, candidate: Candidate, ask: Ask) -> Cost:
        """Return what a run of ``candidate`` costs."""
        run, _, time = candidate.timed()
        hours = parse_walltime(run.launch.walltime) / 3600 if run.launch.walltime else 0.0
        return cost(run, self.place, ask.num_hosts, ask.world_size, time.step_s, hours)

    def answer(self, top: int) -> Answer:
        """Return the best layouts.

        Raises:
            ConfigError: none fits; it says which number of hosts would be enough.
        """
        ask = self.ask()
        with self._tokens_by_option():
            found = search_for(ask, top)
        if not found.best:
            raise ConfigError(self._nothing(found))
        return Answer(found, [self.cost_of(each, ask) for each in found.best])

    def _nothing(self, found: Found) -> str:
        """Return why no layout is possible, and what would be."""
        ask, model = found.ask, self.resolved.run.preset or self.resolved.run.model.family
        where = f"{plural(ask.num_hosts, 'host')} x {ask.ranks_per_host} of {self.place.name}"
        full = [each for each in found.losers if each.kind == "memory" and each.memory is not None]
        if not full:
            others = [each.problem for each in found.losers if each.problem]
            if ask.holds(DP):
                others.append(f"no TP x PP x SP x DP={ask.value(DP)} is {ask.world_size}")
            why = others[-1] if others else "no degrees divide the ranks"
            return f"no layout of {model} on {where}: {why}"
        least = min(full, key=lambda each: each.memory.total if each.memory else 0)
        text = f"no layout of {model} fits {where}: the smallest, {words(least)}, {least.problem}"
        enough = smallest(lambda hosts: self.ask(hosts, ask.batch), ask.num_hosts, self.place.hosts)
        if enough is None or enough.best is None:
            return f"{text}; use a smaller model, a larger --max-memory or OFFLOAD_OPTIMIZER=cpu"
        return f"{text}; --nodes {enough.ask.num_hosts} would: {words(enough.best)}"

    def sweep(self) -> list[Row]:
        """Return the best layout for numbers of hosts.

        Raises:
            ConfigError: none has one.
        """
        numbers = counts(self.place)
        batch = self.ask(numbers[-1]).batch
        rows = sweep(lambda hosts: self.ask(hosts, batch), numbers)
        if not any(row.best for row in rows):
            with self._tokens_by_option():
                found = search_for(self.ask(numbers[-1], batch), 1)
            raise ConfigError(self._nothing(found))
        return rows

    @contextmanager
    def _tokens_by_option(self) -> Iterator[None]:
        """Have errors of the token budget name ``--tokens`` where the option gives it."""
        try:
            yield
        except ConfigError as error:
            tokens = f"TRAIN_TOKENS={self.request.env.get('TRAIN_TOKENS')} (env TRAIN_TOKENS)"
            given = f"--tokens {self.options.tokens}"
            raise ConfigError(str(error).replace(tokens, given) if self.options.tokens else str(error)) from None


def words(candidate: Candidate) -> str:
    """Return the settings of a candidate as a user types them."""
    return " ".join(f"{name}={value}" for name, value in candidate.settings.items() if name != "GLOBAL_BATCH")


def question_of(request: TrainRequest, options: Options) -> Question:
    """Return what is asked.

    Raises:
        ConfigError: an option or a setting is wrong, or two contradict each other.
    """
    if not isfinite(options.max_memory) or not 0 < options.max_memory <= 1:
        raise ConfigError(f"--max-memory {options.max_memory:g}: a share of a device's memory, e.g. 0.9")
    if options.nodes and options.ranks:
        raise ConfigError(f"--nodes {options.nodes} and --ranks {options.ranks}: pass one of them")
    if options.anchor:
        measured = read_measured(Path(options.anchor))
        is_named = options.machine or options.device or request.env.get("MACHINE")
        place, machine = _place(request, options) if is_named else (None, BY_DEVICE)
        place = anchored(place, measured)
    else:
        place, machine = _place(request, options)
    request = _with_tokens(request, options.tokens)
    request = replace(request, env={**request.env, "MACHINE": machine})
    hosts, per_host = _hosts(request, options, place, machine)
    if options.ranks and per_host != place.per_host:  # a part of a host, which the pasted command has to say
        request = replace(request, env={**request.env, "NGPU_PER_HOST": str(per_host)})
    resolved = _resolved(request, machine, hosts)
    return Question(request, options, place, machine, resolved, hosts, per_host, resolved.notes)


def _resolved(request: TrainRequest, machine: str, num_hosts: int) -> Resolved:
    env = {**request.env, **({"NHOSTS": str(num_hosts)} if num_hosts else {})}
    return resolve_request(replace(request, env=env), machine, num_hosts)


def _place(request: TrainRequest, options: Options) -> tuple[Place, str]:
    """Return the place, and the machine whose settings hold there. Options win over the environment."""
    if options.device and not options.machine:
        return place_of(options.device), BY_DEVICE
    name = options.machine or machine_name(request.hostname, request.env, request.root)
    if not (options.machine or request.env.get("MACHINE")) and name in ("cpu", BY_DEVICE, "pbs", "slurm"):
        raise ConfigError(
            "this host is not a machine of envs/; pass --machine NAME, or --device NAME, e.g. --device h100"
        )
    return place_of(name, root=request.root, device=options.device), name


def _with_tokens(request: TrainRequest, text: str) -> TrainRequest:
    """Return ``request`` with the token budget of ``--tokens``."""
    if not text:
        return request
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?(?:[eE][0-9]{1,2})?)([kMBGT]?)", text)
    count = float(match[1]) * SCALES[match[2]] if match else 0.0
    if not 1 <= count <= MOST_TOKENS:
        raise ConfigError(f"--tokens {text[:40]}: a number of tokens, e.g. 300B, 1.5T or 1e12, at most 2**53")
    if given := request.env.get("TRAIN_TOKENS"):
        raise ConfigError(f"--tokens {text} and TRAIN_TOKENS={given}: pass one of them")
    return replace(request, env={**request.env, "TRAIN_TOKENS": str(round(count))})


def _hosts(request: TrainRequest, options: Options, place: Place, machine: str) -> tuple[int, int]:
    """Return hosts, 0 for a table, and ranks of each.

    Raises:
        ConfigError: they contradict each other, or the machine has fewer.
    """
    first = _resolved(request, machine, 0)
    nodes, per_host = options.nodes or 0, value_of(first.run, "launch.ranks_per_host") or place.per_host
    given = value_of(first.run, "launch.num_hosts")
    if nodes and given and nodes != given:
        raise ConfigError(f"--nodes {nodes} and NHOSTS={given} differ; pass one of them")
    nodes = nodes or given
    if options.ranks:
        if nodes and options.ranks != nodes * per_host:
            raise ConfigError(
                f"--ranks {options.ranks} and NHOSTS={nodes} of {per_host} ranks differ; pass one of them"
            )
        nodes = -(-options.ranks // per_host)
        if nodes > 1 and options.ranks % per_host:
            raise ConfigError(
                f"--ranks {options.ranks}: a host of {place.name} has {per_host} ranks; use a multiple, e.g. "
                f"--ranks {nodes * per_host}"
            )
        per_host = min(per_host, options.ranks)
    if place.hosts and nodes > place.hosts:
        raise ConfigError(f"{place.name} has {place.hosts:,} hosts, fewer than {nodes:,}; use --nodes {place.hosts}")
    if nodes * per_host > MOST_RANKS:
        raise ConfigError(f"{nodes * per_host:,} ranks are more than {MOST_RANKS:,}; use fewer")
    return nodes, per_host
