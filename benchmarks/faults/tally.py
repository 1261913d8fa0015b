"""What came of each fault, and the table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Result:
    """What came of a fault; ``excluded``: healthy hosts that were left out, ``lost``: what was lost, "" nothing."""

    kind: str
    causes: tuple[str, ...]
    verdict: str
    recovered: bool
    lost: str = ""
    excluded: tuple[str, ...] = ()
    code: int = 0
    is_right: bool = True  # the cause
    recoverable: bool = True
    seconds: float = 0.0


@dataclass
class Tally:
    """All results."""

    results: list[Result] = field(default_factory=list)

    def table(self) -> str:
        """Return a table in Markdown, a row for each kind and one for all."""
        kinds = sorted({each.kind for each in self.results})
        lines = [
            "| fault | runs | causes given | right | recovered | lost | healthy hosts excluded |",
            "|---|---:|---|---:|---:|---:|---:|",
        ]
        for kind in [*kinds, ""]:
            rows = [each for each in self.results if not kind or each.kind == kind]
            causes = Counter(cause or "none" for each in rows for cause in each.causes[-1:])
            given = ", ".join(f"{cause} {count}" for cause, count in causes.most_common()) if kind else ""
            can = [each for each in rows if each.recoverable]
            recovered = f"{sum(each.recovered for each in can)} of {len(can)}" if can else "stops"
            right, lost = sum(each.is_right for each in rows), sum(bool(each.lost) for each in rows)
            blamed = sum(bool(each.excluded) for each in rows)
            lines.append(f"| {kind or 'all'} | {len(rows)} | {given} | {right} | {recovered} | {lost} | {blamed} |")
        return "\n".join(lines) + "\n"

    def problems(self) -> list[str]:
        """Return a line for each result that is not as it is to be."""
        found = []
        for number, each in enumerate(self.results):
            if each.lost or each.excluded or not each.is_right or (each.recoverable and not each.recovered):
                found.append(f"{number} {each}")
        return found
