"""Read the changes that a refusal names, and make them as a user would."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from megads.config.rules import checks
from megads.config.rules.advice import Attempt, Change, Layout, put
from megads.config.schema import RunConfig
from megads.config.sizes import model_degree


@dataclass(frozen=True)
class Way:
    """One of the changes that a line names: words such as ``TP=2``, ``--zero-stage=1`` or ``--set a.b=1``."""

    variables: dict[str, str]
    options: dict[str, str]
    dropped: tuple[str, ...]

    def words(self, given: Sequence[str]) -> list[str]:
        """Return the command line ``given`` with the options of this change."""
        kept: list[str] = []
        skip = False
        for word in given:
            if skip or word in self.dropped:
                skip = False
            elif word in self.options:
                skip = True
            elif kept[-1:] == ["--set"] and word.split("=")[0] in self.options:
                kept.pop()
            else:
                kept.append(word)
        for name, value in self.options.items():
            kept += [f"{name}={value}"] if name.startswith("--") else ["--set", f"{name}={value}"]
        return kept


def ways(message: str) -> list[Way]:
    """Return every change that ``message`` names."""
    advice = re.split(r"; (?=(?:use|leave|give|drop) )", message)[-1]
    found = []
    for part in re.split(r", or |, | or ", advice if advice != message else ""):
        variables = dict(re.findall(r"(?<!\S)([A-Z][A-Z0-9_]*)=(\S+)", part))
        options = dict(re.findall(r"(?<!\S)(--[\w-]+|[a-z]+\.\w+)=(\S+)", part))
        dropped = tuple(re.search(r"drop ((?:--[\w-]+ ?)+)", part)[1].split()) if "drop --" in part else ()
        if variables or options or dropped:
            found.append(Way(variables, options, dropped))
    return found


def check(run: RunConfig, world_size: int) -> None:
    """Check a derived run; advice starts from it."""
    checks.check(run, world_size, attempt_from(run, world_size))


def attempt_from(run: RunConfig, world_size: int) -> Attempt:
    """Return what tries a change of a derived run, keeping its ranks and its global batch where it can."""

    def attempt(change: Change) -> Layout | None:
        given = change.get("launch.ranks_per_host", run.launch.ranks_per_host)
        world = world_size * given // max(1, run.launch.ranks_per_host)
        changed = put(run, change)
        if world % model_degree(changed):
            return None
        data = world // model_degree(changed)
        rows = changed.train.micro_batch * data
        total = changed.train.global_batch
        steps = total // rows if total % rows == 0 else changed.train.grad_acc_steps
        derived: Change = {
            "parallel.data": data,
            "train.grad_acc_steps": steps,
            "train.global_batch": rows * steps,
            "launch.ranks_per_host": given,
        }
        changed = put(changed, derived)
        return Layout(changed, world, given, checks.problem_of(changed, world))

    return Attempt(attempt)
