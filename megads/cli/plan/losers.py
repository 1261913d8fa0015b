"""Why layouts lose, a line each, grouped by the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator

from megads.plan.search.because import slower
from megads.plan.search.search import Candidate, Found, Kind

SHOWN = 4
"""Lines of a group; --json has all."""

MOST_VALUES = 6

GROUPS: tuple[tuple[Kind, str], ...] = (
    ("fits", "slower than those above (settings that differ from the first; shares of the step)"),
    ("memory", "does not fit"),
    ("batch", "the batch is not divisible"),
    ("rule", "rejected by a rule"),
    ("untimed", "not promising, by a quick time"),
)


def loser_lines(found: Found) -> Iterator[str]:
    """Yield the groups of layouts that lose, with the reason of each."""
    best = found.best[0]
    for kind, title in GROUPS:
        group = [each for each in found.losers if each.kind == kind]
        if not group:
            continue
        lines = _joined(group, best)
        yield ""
        yield f"{title}:"
        yield from (f"  {line}" for line in lines[:SHOWN])
        if len(lines) > SHOWN:
            yield f"  ... {len(lines) - SHOWN} more; --json FILE has all"


def _joined(group: list[Candidate], best: Candidate) -> list[str]:
    """Return a line for each; degrees of one axis that lose for the same reason share one."""
    lines: dict[tuple[str, str], list[str]] = {}
    for each in group:
        text = reason(each, best).replace(" of the step", "")
        if len(each.settings) == 1:
            ((name, value),) = each.settings.items()
            lines.setdefault((name, re.sub(rf"\b{value}\b", "N", text)), []).append(value)
        else:
            lines[short(each, best), text] = []
    return [f"{name}{'=' if values else ''}{_few(values)}: {text}" for (name, text), values in lines.items()]


def _few(values: list[str]) -> str:
    """Return ``3, 6, 12``, of many the first ones and the last."""
    return ", ".join(values) if len(values) <= MOST_VALUES else f"{', '.join(values[:3])} ... {values[-1]}"


def reason(candidate: Candidate, best: Candidate) -> str:
    """Return why ``candidate`` is not proposed."""
    return candidate.problem or slower(candidate, best)


def short(candidate: Candidate, best: Candidate) -> str:
    """Return the settings of a candidate that differ from those of the best one."""
    given = {name: value for name, value in candidate.settings.items() if name != "GLOBAL_BATCH"}
    different = {name: value for name, value in given.items() if best.settings.get(name) != value}
    return " ".join(f"{name}={value}" for name, value in (different or given).items())
