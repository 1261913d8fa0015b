"""The answer of ``megads plan`` as one JSON object."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from megads.cli.plan.losers import reason
from megads.cli.plan.question import Answer, Question
from megads.cli.plan.report import command_line
from megads.plan.costs.cost import Cost
from megads.plan.errors import error_of
from megads.plan.search.hosts import Row
from megads.plan.search.risks import risks
from megads.plan.search.search import Candidate


def as_json(question: Question, *, answer: Answer | None = None, sweep: list[Row] | None = None) -> str:
    """Return what was found, on one number of hosts or on several."""
    content: dict[str, Any] = {
        "is_estimated": True,
        "place": question.place.name,
        "preset": question.resolved.run.preset,
    }
    if answer is not None:
        found, ask = answer.found, answer.found.ask
        content |= {
            "hosts": ask.num_hosts,
            "ranks": ask.world_size,
            "looked": found.looked,
            "timed": found.timed,
            "best": [
                _candidate(each)
                | {"error": asdict(error_of(question.place, each.timed()[0]))}
                | {"cost": _cost(cost), "risks": list(risks(each, ask)), "command": command_line(question, each)}
                for each, cost in zip(found.best, answer.costs, strict=True)
            ],
            "losers": [
                {"settings": each.settings, "kind": each.kind, "problem": reason(each, found.best[0])}
                for each in found.losers
            ],
        }
    if sweep is not None:
        content["sweep"] = [
            {"hosts": row.ask.num_hosts, "ranks": row.ask.world_size, "problem": row.problem}
            | (_candidate(row.best) | {"cost": _cost(question.cost_of(row.best, row.ask))} if row.best else {})
            for row in sweep
        ]
    return json.dumps(content, indent=2)


def _candidate(candidate: Candidate) -> dict[str, Any]:
    run, memory, time = candidate.timed()
    return {
        "settings": candidate.settings,
        "layout": {**run.parallel.model_dump(), "micro_batch": run.train.micro_batch},
        "global_batch": run.train.global_batch,
        "grad_acc_steps": run.train.grad_acc_steps,
        "recompute": run.recompute.granularity,
        "step_s": time.step_s,
        "tokens_per_s": time.tokens_per_s * time.world_size,
        "tokens_per_s_per_device": time.tokens_per_s,
        "mfu": time.mfu_full,
        "mfu_causal": time.mfu_causal,
        "lines": [asdict(line) for line in time.lines],
        "memory_bytes": {**asdict(memory), "total": memory.total},
        "stage": candidate.stage,
    }


def _cost(cost: Cost) -> dict[str, Any]:
    found = cost.campaign
    return {
        **asdict(found),
        "days": found.days,
        "node_hours": found.node_hours,
        "queue": cost.queue.name if cost.queue else None,
        "walltime_hours": cost.walltime_hours,
    }
