"""Why layouts lose, a line each, grouped by the reason."""

from __future__ import annotations

from collections.abc import Iterator

from megads.plan.search.because import slower
from megads.plan.search.search import Candidate, Found, Kind
from megads.text.plural import plural

SHOWN = 4
"""Lines of a group; --json has all."""

GROUPS: tuple[tuple[Kind, str], ...] = (
    ("fits", "slower"),
    ("memory", "too large"),
    ("batch", "batch not divisible"),
    ("rule", "rejected by a rule"),
    ("untimed", "not promising"),
)


def loser_lines(found: Found) -> Iterator[str]:
    """Yield the groups of layouts that lose, with the reason of each."""
    best = found.best[0]
    for kind, title in GROUPS:
        group = [each for each in found.losers if each.kind == kind]
        if not group:
            continue
        yield f"{plural(len(group), 'layout')} {title}:"
        for each in group[:SHOWN]:
            yield f"  {short(each)}: {reason(each, best)}"
        if len(group) > SHOWN:
            yield f"  ... {len(group) - SHOWN} more; --json FILE has all"


def reason(candidate: Candidate, best: Candidate) -> str:
    """Return why ``candidate`` is not proposed."""
    return candidate.problem or slower(candidate, best)


def short(candidate: Candidate) -> str:
    """Return the settings of a candidate without those that all have."""
    return " ".join(f"{name}={value}" for name, value in candidate.settings.items() if name != "GLOBAL_BATCH")
