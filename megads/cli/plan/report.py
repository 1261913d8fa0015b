"""What ``megads plan`` prints: the table of layouts, the cost of the best one, why the others lose."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from megads.cli.plan.advice import advice_lines
from megads.cli.plan.losers import loser_lines
from megads.cli.plan.question import Answer, Question
from megads.config.schema import RunConfig
from megads.config.stages import schedule_of, virtual_stages
from megads.config.tree import env_name
from megads.plan.costs.cost import Cost
from megads.plan.errors import error_of, memory_error
from megads.plan.memory import GIB, count_parameters
from megads.plan.places.place import Place
from megads.plan.places.same_device import is_cpu
from megads.plan.search.ask import BATCH, SEARCHED, VOCABULARY, Ask
from megads.plan.search.risks import risks
from megads.plan.search.search import Candidate
from megads.plan.time.step import Kind
from megads.text.plural import plural
from megads.text.units import count, duration, seconds, size

HEAD = (
    *("", "TP", "PP", "VPP", "SP", "DP", "ZeRO", "micro", "acc", "recompute", "schedule", "tokens/s", "MFU", "causal"),
    *("GiB", "comm", "idle", "step", "+-", "days", "risk"),
)
SHOWN_SHARES = 3


def report(question: Question, answer: Answer) -> list[str]:
    """Return what is printed for one number of hosts."""
    ask, best = answer.found.ask, answer.found.best
    rows = [_row(number, *each, ask) for number, each in enumerate(zip(best, answer.costs, strict=True), 1)]
    return [
        *_opening(question, ask, best[0]),
        "",
        *table([HEAD, *rows]),
        "",
        *_cost_lines(best[0], answer.costs[0], ask),
        *_time_lines(best[0]),
        *advice_lines(answer.found),
        f"paste    {command_line(question, best[0])}",
        *loser_lines(answer.found),
        "",
        *_closing(question, answer.found.looked, answer.found.timed),
    ]


def _opening(question: Question, ask: Ask, best: Candidate) -> Iterator[str]:
    run, place = best.timed()[0], question.place
    model = run.model
    name = run.preset or model.family
    where = f"{plural(ask.num_hosts, 'host', ',')} x {ask.ranks_per_host} = {plural(ask.world_size, 'rank', ',')}"
    yield (
        f"ESTIMATED, not measured: {name}, {count(count_parameters(model))} parameters, on {place.name}: {where} of "
        f"{place.device.device_name}, {place.memory_gib:g} GiB"
    )
    yield f"batch    {batch_text(best, ask)}"
    yield from error_lines(run, place)


def error_lines(run: RunConfig, place: Place) -> Iterator[str]:
    """Yield how far off predicted step times were, and predicted memory; nothing is published of a CPU's."""
    rows = [("error", "step times", error_of(place, run)), ("", "peaks of memory", memory_error())]
    for first, what, each in rows[:1] if is_cpu(place.device.device_name) else rows:
        yield (
            f"{first:<8} predicted {what} were {each.mean:.0%} off on average and at most {each.p95:.0%} in 95 of 100 "
            f"cases ({each.what})"
        )


def batch_text(best: Candidate, ask: Ask) -> str:
    """Return the batch of a step, and what decides it."""
    run = best.timed()[0]
    batch, length = run.train.global_batch, run.model.seq_length
    origin = ask.resolved.origins[BATCH]
    why = f"{origin}" if ask.batch_is_given else "by the settings, at most 16.8M tokens; GLOBAL_BATCH sets another"
    if not ask.batch:
        why = "by MICRO_BATCH, GRAD_ACC_STEPS and the layout"
    return f"{plural(batch, 'sample', ',')} of {length:,} tokens = {count(batch * length)} tokens per step ({why})"


def _row(place_in_table: int, candidate: Candidate, cost: Cost, ask: Ask) -> tuple[str, ...]:
    run, memory, time = candidate.timed()
    return (
        *(f"{place_in_table}", *grid_cells(run)),
        count(time.tokens_per_s * time.world_size),
        *(f"{time.mfu_full:.1%}", f"{time.mfu_causal:.1%}", f"{memory.total / GIB:.1f}"),
        *(f"{time.share('communication'):.0%}", f"{time.share('idle'):.0%}", seconds(time.step_s)),
        f"{error_of(ask.place, run).mean:.0%}",
        number(cost.campaign.days),
        ", ".join(risks(candidate, ask)) or "low",
    )


def grid_cells(run: RunConfig) -> tuple[str, ...]:
    """Return the layout of a run: TP, PP, VPP, SP, DP, ZeRO, micro-batch, accumulation, recomputation, schedule."""
    grid, train = run.parallel, run.train
    return (
        *(f"{each}" for each in (grid.tensor, grid.pipeline, virtual_stages(run), grid.sequence, grid.data)),
        *(f"{grid.zero_stage}", f"{train.micro_batch}", f"{train.grad_acc_steps}", run.recompute.granularity),
        schedule_of(run) if grid.pipeline > 1 else "-",
    )


def number(value: float) -> str:
    """Return three digits, or all of a larger number."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def volume(num_bytes: float) -> str:
    """Return bytes of files, up to ``161 PiB``."""
    return f"{number(num_bytes / 2**50)} PiB" if num_bytes >= 1000 * 2**40 else size(num_bytes)


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Return rows with columns of equal width; numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    is_text = [any(row[column][:1].isalpha() for row in rows[1:]) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(row, widths, is_text, strict=True)
        ).rstrip()
        for row in rows
    ]


def _cost_lines(best: Candidate, cost: Cost, ask: Ask) -> Iterator[str]:
    found, tokens = cost.campaign, best.timed()[0].train.train_tokens
    spent = f"{number(found.days)} days" if found.days >= 1 else duration(found.total_s)
    yield (
        f"run      {count(tokens)} tokens, {plural(found.steps, 'step', ',')}: {spent} in jobs, "
        f"{count(found.node_hours)} node-hours, {found.efficiency:.1%} of it steps that count"
    )
    energy = "energy not known: the power of a host is not"
    if found.kwh is not None:
        co2 = f", {number(found.co2_kg / 1000)} t CO2" if found.co2_kg is not None else ""
        energy = f"{found.kwh:,.0f} kWh{co2}"
    yield f"energy   {energy}"
    if cost.queue is not None:
        limit = f" of at most {cost.walltime_hours:g} h" if cost.walltime_hours else ""
        yield f"jobs     {plural(found.jobs, 'job', ',')}{limit}, queue {cost.queue.name}"
    elif cost.walltime_hours:
        yield f"jobs     {plural(found.jobs, 'job', ',')} of at most {cost.walltime_hours:g} h"
    elif ask.place.queues:
        yield f"jobs     no queue of {ask.place.name} takes {plural(ask.num_hosts, 'host')}"
    more = []
    if found.failures:
        more.append(f"{number(found.failures)} failures expected, {duration(found.lost_s)} lost")
    if every := found.best_save_interval_steps:
        more.append(f"shortest run with SAVE_INTERVAL={every}")
    yield "; ".join(
        [
            f"saves    {plural(found.saves, 'checkpoint', ',')} of {volume(found.save_bytes)}, "
            f"{volume(found.kept_bytes)} kept, {volume(found.written_bytes)} written",
            *more,
        ]
    )


def _time_lines(best: Candidate) -> Iterator[str]:
    _, memory, time = best.timed()
    shares: tuple[Kind, ...] = get_args(Kind)
    yield "time     " + ", ".join(f"{kind} {time.share(kind):.0%}" for kind in shares)
    yield f"memory   GiB of stage {best.stage}: {memory}"
    for line in time.longest()[:SHOWN_SHARES]:
        yield f"cure     {line.name}, {line.seconds / time.step_s:.0%} of the step: {line.cure}"


def command_line(question: Question, candidate: Candidate) -> str:
    """Return the command that trains with the settings of ``candidate``: the user's and those that were searched."""
    request, resolved = question.request, question.resolved
    given: dict[str, str] = {}
    for name, origin in resolved.origins.items():
        if origin.layer == "env" and origin.detail in request.env and name not in ("machine", "preset"):
            given[origin.detail] = request.env[origin.detail]
    preset = resolved.run.preset
    if preset == "7B" and Path("train_7B.sh").is_file():
        script = ["bash", "train_7B.sh"]
    else:  # an installed megads has no scripts in the working folder
        script = ["bash", "launchers/train.sh"] if Path("launchers/train.sh").is_file() else ["megads", "train"]
        script += ["--preset", preset] if preset else []
    if question.num_hosts:
        given[env_name("launch.num_hosts")] = str(question.num_hosts)
    given |= candidate.settings
    for pair in request.pairs:
        script += [] if pair.startswith("preset=") else ["--set", pair]
    for flag, follows in request.flags:
        script += [flag, *([follows] if follows else [])]
    assignments = [f"{name}={shlex.quote(value)}" for name, value in given.items()]
    return " ".join([*assignments, *map(shlex.quote, script)])


def _closing(question: Question, looked: int, timed: int) -> Iterator[str]:
    yield f"searched {looked:,} candidates, {timed} timed line by line; held: {held(question) or 'nothing'}"
    yield f"source   {question.place.source}"
    if question.place.rates.is_anchored:
        yield f"anchor   {question.place.rates.source.removeprefix('anchored ')}"
    vocabulary = () if question.resolved.run.model.vocab_size else (f"a vocabulary of {VOCABULARY:,} tokens",)
    if assumed := (*vocabulary, *question.place.assumed):
        yield f"assumed  {'; '.join(assumed)}"


def held(question: Question) -> str:
    """Return the settings of the layout that the user gives."""
    ask = question.ask() if question.num_hosts else question.ask(1)
    return " ".join(f"{env_name(name)}={ask.value(name)}" for name in SEARCHED if ask.holds(name))
