"""A campaign as lines for the terminal, and as tables of the page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from megads.errors import plain
from megads.monitor.report.campaign import Campaign, Event, where_text
from megads.monitor.report.shares import PARTS, TRAINING, host_seconds
from megads.text.plural import plural
from megads.text.units import count, duration

MOST_EVENTS = 40  # on the terminal
HEAD = ("job", "began", "hosts", "ranks", "layout", "steps", "wall", "trained", "end")


def date_text(at: float) -> str:
    """Return unix seconds as ``2026-05-01 18:00``, empty where they are not known."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) if at else ""


def facts_of(campaign: Campaign, price: float = 0.0) -> list[tuple[str, str]]:
    """Return what the report says first, by name.

    Args:
        price: of an hour of one host; 0: not known.
    """
    facts, found = campaign.facts, []
    of = f" of {facts.total}" if facts.total else ""
    found.append(("state", facts.state + (f": {facts.why}" if facts.why else "")))
    found.append(("step", f"{facts.step}{of}" + (f", {count(facts.tokens)} tokens" if facts.tokens else "")))
    found.append(("loss", _losses(campaign)))
    if campaign.links:
        jobs, starts = plural(campaign.jobs, "job"), plural(len(campaign.links), "start")
        found.append(("jobs", f"{jobs}, {starts}" if campaign.jobs != len(campaign.links) else jobs))
        found.append(("time", _time(campaign)))
        found.append(("allocated", f"{campaign.host_hours:.4g} host-hours, {campaign.rank_hours:.4g} rank-hours"))
        found.append(("trained", shares_text(campaign)))
    found += [("energy", text) for text in _energy(campaign)]
    found += [("host", text) for text in campaign.bad_hosts]
    if price and campaign.links:
        found.append(("cost", f"{price * campaign.host_hours:,.2f} at {price:g} per host-hour"))
    return [(name, text) for name, text in found if text]


def _losses(campaign: Campaign) -> str:
    parts = [f"training {campaign.facts.loss:.4f}"] if campaign.facts.loss is not None else []
    if campaign.facts.valid_loss is not None:
        parts.append(f"validation {campaign.facts.valid_loss:.4f}")
    if (best := campaign.best("valid_loss")) is not None:
        parts.append(f"best {best[0]:.4f} at step {best[1]}")
    return ", ".join(parts)


def _time(campaign: Campaign) -> str:
    first, last = campaign.links[0], campaign.links[-1]
    text = f"{duration(last.ended - first.attempt.started)} from {date_text(first.attempt.started)}"
    return text + (f", {duration(campaign.queued_s)} between jobs" if campaign.queued_s >= 1 else "")


def shares_text(campaign: Campaign) -> str:
    """Return ``88.1%; start-up 5.2%, saves 2.1%``: shares of the allocated host time."""
    parts = host_seconds(campaign.links)
    whole = sum(parts.values())
    if not whole:
        return ""
    rest = sorted(((parts[name] / whole, name) for name in parts if name != TRAINING), reverse=True)
    others = ", ".join(f"{name} {share:.1%}" for share, name in rest if share >= 0.0005)
    stall = campaign.data_stall
    waits = f" ({stall:.1%} of it waited for data)" if stall and stall >= 0.0005 else ""
    return f"{parts.get(TRAINING, 0.0) / whole:.1%}{waits}" + (f"; {others}" if others else "")


def _energy(campaign: Campaign) -> list[str]:
    measured, estimated = campaign.last("energy_kwh"), campaign.last("energy_estimated_kwh")
    parts = [] if measured is None else [f"{measured:.4g} kWh measured"]
    parts += [] if estimated is None else [f"{estimated:.4g} kWh estimated"]
    co2 = campaign.last("co2_kg")
    parts += [] if co2 is None else [f"{co2:.4g} kg CO2"]
    return [", ".join(parts)] if parts else []


def job_rows(campaign: Campaign) -> list[list[str]]:
    """Return a row of :data:`HEAD` for every start."""
    rows = []
    for link in campaign.links:
        attempt = link.attempt
        wall = link.ended - attempt.started
        trained = link.seconds.get(TRAINING, 0.0) / link.allocated_s if link.allocated_s else 0.0
        job = attempt.job or "-"
        rows.append([
            f"{job} #{attempt.attempt}" if attempt.attempt else job,
            date_text(attempt.started),
            str(len(attempt.hosts)),
            str(attempt.num_ranks),
            attempt.layout,
            f"{attempt.began}-{attempt.reached}",
            duration(wall),
            f"{trained:.1%}",
            _end(attempt.exit_code, attempt.cause or attempt.kind) if attempt.ended else "running",
        ])  # fmt: skip
    return rows


def _end(exit_code: int, cause: str) -> str:
    return {0: "done", 75: "stopped"}.get(exit_code) or f"failed: {cause}".removesuffix(": ")


def table(rows: Sequence[Sequence[str]], head: Sequence[str]) -> list[str]:
    """Return lines with columns of equal width; empty columns are skipped."""
    cells = [[plain(cell) for cell in row] for row in rows]
    shown = [number for number in range(len(head)) if any(row[number] for row in cells)]
    widths = [max(len(head[number]), *(len(row[number]) for row in cells)) for number in shown]
    return [
        "  ".join(row[number].ljust(width) for number, width in zip(shown, widths, strict=True)).rstrip()
        for row in [head, *cells]
    ]


def event_text(event: Event) -> str:
    """Return one line about an event."""
    when = date_text(event.at)
    return f"{when or '':16}  step {event.step}: {event.text}"


def lines_of(campaign: Campaign, price: float = 0.0) -> list[str]:
    """Return the report of one run for the terminal."""
    lines = [f"{name:10} {plain(text)}" for name, text in (("run", str(campaign.path)), *facts_of(campaign, price))]
    if campaign.links:
        lines += ["", *table(job_rows(campaign), HEAD)]
    else:
        lines += ["", "no starts are recorded (attempts.jsonl): times and hosts are not known"]
    if campaign.events:
        events = [plain(event_text(event)) for event in campaign.events]
        cut = len(events) - MOST_EVENTS
        more = [f"({plural(cut, 'earlier event')} in the page)"] if cut > 0 else []
        lines += ["", *more, *events[-MOST_EVENTS:]]
    return lines


RUNS_HEAD = ("run", "state", "step", "loss", "valid", "jobs", "starts", "host-hours", "trained", "kWh", "lost steps")


def run_rows(campaigns: Sequence[Campaign], names: Sequence[str]) -> list[list[str]]:
    """Return a row of :data:`RUNS_HEAD` for every run."""
    rows = []
    for name, each in zip(names, campaigns, strict=True):
        facts, share = each.facts, each.efficiency
        energy = each.last("energy_kwh")
        loss = ["" if value is None else f"{value:.4f}" for value in (facts.loss, facts.valid_loss)]
        hours = f"{each.host_hours:.4g}" if each.links else ""
        starts = [str(each.jobs), str(len(each.links))] if each.links else ["", ""]
        lost = sum(link.lost_steps for link in each.links)
        step = f"{facts.step}/{facts.total}" if facts.total else str(facts.step)
        kwh = "" if energy is None else f"{energy:.4g}"
        trained = "" if share is None else f"{share:.1%}"
        rows.append([name, facts.state, step, *loss, *starts, hours, trained, kwh, str(lost) if lost else ""])
    return rows


def as_data(campaign: Campaign, price: float = 0.0) -> dict[str, Any]:
    """Return the report for programs."""
    parts = host_seconds(campaign.links)
    best = campaign.best("valid_loss")
    return {
        "run": str(campaign.path),
        "state": campaign.facts.state,
        "step": campaign.facts.step,
        "total_steps": campaign.facts.total,
        "tokens": campaign.facts.tokens,
        "loss": campaign.facts.loss,
        "valid_loss": campaign.facts.valid_loss,
        "best_valid_loss": best[0] if best else None,
        "jobs": campaign.jobs,
        "starts": len(campaign.links),
        "host_hours": campaign.host_hours,
        "rank_hours": campaign.rank_hours,
        "queued_s": campaign.queued_s,
        "efficiency": campaign.efficiency,
        "host_seconds": {part: parts[part] for part in PARTS if part in parts},
        "lost_steps": sum(link.lost_steps for link in campaign.links),
        "energy_kwh": campaign.last("energy_kwh"),
        "co2_kg": campaign.last("co2_kg"),
        "cost": price * campaign.host_hours if price else None,
        "links": [
            {
                "job": link.attempt.job, "attempt": link.attempt.attempt, "started": link.attempt.started,
                "ended": link.ended, "where": where_text(link.attempt), "hosts": list(link.attempt.hosts),
                "layout": link.attempt.layout, "began": link.attempt.began, "reached": link.attempt.reached,
                "kept": link.kept, "exit_code": link.attempt.exit_code, "cause": link.attempt.cause,
                "seconds": dict(link.seconds), "queued_s": link.queued_s,
            }
            for link in campaign.links
        ],
        "events": [{"at": each.at, "step": each.step, "text": each.text} for each in campaign.events],
    }  # fmt: skip
