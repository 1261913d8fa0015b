"""``megads plan --trace``: one rank of a run, as its engine would do a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING

import click

from megads.errors import ConfigError, DependencyError
from megads.text.plural import plural

if TYPE_CHECKING:
    from megads.cli.plan.question import Options
    from megads.config.schema import RunConfig
    from megads.launch.request import TrainRequest

VOCABULARY = 32_000
"""Of a model whose VOCAB_SIZE is not set: its tokenizer is not read here."""

PER_HOST = 8
"""Ranks of a host where no machine says how many."""

MOST_RANKS = 1 << 20
BY_DEVICE = "generic"
"""The machine of a run that names none, or only a device."""


def trace_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a trace to a command."""
    options = (
        click.option("--trace", "is_trace", is_flag=True, help="Dry run of a step of --rank, of --world ranks."),
        click.option("--rank", type=int, help="Of --trace: the rank; default 0."),
        click.option("--world", type=int, help="Of --trace: total ranks, without a machine or hosts."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def trace_report(
    request: Callable[[], TrainRequest],
    options: Options,
    *,
    is_apply: bool,
    is_trace: bool,
    rank: int | None,
    world: int | None,
) -> tuple[list[str], str] | None:
    """Return what :func:`show_trace` does where ``--trace`` asks for it, else None.

    Raises:
        ConfigError: also where an option is for a trace alone, or not for one.
    """
    if not is_trace:
        for name, value in (("--rank", rank), ("--world", world)):
            if value is not None:
                raise ConfigError(f"{name} {value} is for --trace; add --trace, or leave it out")
        return None
    others = {"--apply": is_apply, "--tokens": options.tokens}
    for name, is_given in others.items():
        if is_given:
            raise ConfigError(f"{name} is for a search of layouts, and --trace runs the layout of the settings")
    if world is not None and (options.nodes or options.ranks):
        raise ConfigError(f"--world {world}, --nodes and --ranks all say how many ranks there are; pass one of them")
    asked = request()
    given = asked.env.get("MACHINE", "")
    if options.machine and given and given != options.machine:
        raise ConfigError(f"--machine {options.machine} and MACHINE={given} differ; unset MACHINE")
    machine, per_host = options.machine or ("" if options.device else given) or BY_DEVICE, PER_HOST
    if options.device or machine not in (BY_DEVICE, "cpu"):
        from megads.plan.places.place import place_of

        name = options.device if machine == BY_DEVICE else machine
        per_host = place_of(name, root=asked.root, device=options.device).per_host
    ranks = world if world is not None else options.ranks or (options.nodes or 0) * per_host
    if world is None and not ranks:
        raise ConfigError("--trace needs the number of ranks: --world N, --ranks N or --nodes N")
    return show_trace(asked, rank or 0, ranks, machine=machine, per_host=per_host)


def show_trace(
    request: TrainRequest, rank: int, world: int, *, machine: str = BY_DEVICE, per_host: int = PER_HOST
) -> tuple[list[str], str]:
    """Return the report of a step of ``rank``, and the same as JSON.

    Args:
        world: total ranks.
        per_host: ranks of a host of ``machine``.

    Raises:
        ConfigError: no such rank, ranks that the layout does not divide, or a run that cannot be traced.
    """
    run = traced_run(request, rank, world, machine=machine, per_host=per_host)
    from megads.trace.compare import compare
    from megads.trace.report import as_json, report
    from megads.trace.step import trace

    batches = plural(run.train.grad_acc_steps, "micro-batch")
    click.echo(f"megads: tracing a step of {batches} ...", err=True)
    note = ""
    try:
        found = trace(run, rank, world)
    except DependencyError as error:  # torch's tracker is not part of its public interface
        if "MemTracker" not in str(error):
            raise
        note, found = str(error), trace(run, rank, world, has_memory=False)
    compared = compare(run, found)
    lines = report(run, found, compared)
    return [*lines, "", f"memory   not counted: {note}"] if note else lines, as_json(run, found, compared)


def traced_run(request: TrainRequest, rank: int, world: int, *, machine: str, per_host: int) -> RunConfig:
    """Return the derived run of ``world`` ranks, once it is clear that it has ``rank``."""
    if not 1 <= world <= MOST_RANKS:
        raise ConfigError(f"--world {world}: total ranks, from 1 to {MOST_RANKS}")
    if not 0 <= rank < world:
        raise ConfigError(f"--rank {rank}: the ranks of --world {world} are 0 to {world - 1}")
    from megads.config.derive import attempts, derive
    from megads.config.rules.checks import check
    from megads.launch.request import resolve_request

    ranks_per_host = gcd(world, per_host)
    hosts = world // ranks_per_host
    env = {name: value for name, value in request.env.items() if name not in ("NHOSTS", "NGPU_PER_HOST")}
    env |= {"NHOSTS": str(hosts), "MACHINE": machine}
    resolved = resolve_request(replace(request, env=env), machine, hosts)
    vocabulary = resolved.run.model.vocab_size or VOCABULARY
    run = derive(resolved, num_hosts=hosts, ranks_per_host=ranks_per_host, vocab_size=vocabulary).run
    check(run, world, attempts(resolved, lambda _: (hosts, ranks_per_host), vocabulary))
    return run
