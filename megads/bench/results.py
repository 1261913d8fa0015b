"""What the parts of a benchmark found, and how it is written: a table, Markdown, JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from megads.text.plural import plural
from megads.text.units import duration

Status = Literal["running", "done", "partial", "dropped", "skipped", "failed", "wrong"]
"""partial: some rows are missing; dropped: no time was left; skipped: it does not apply here."""


@dataclass
class PartResult:
    """One part.

    Attributes:
        name: on the command line.
        title: one line.
        columns: key of a row -> heading. A heading that begins with ``%`` shows a fraction in percent.
        rows: what was measured; keys besides the columns are in the JSON only.
        notes: lines below the table: what was dropped, and why.
        wrong: numbers that are not what they should be.
    """

    name: str
    title: str
    columns: Mapping[str, str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    status: Status = "running"
    seconds: float = 0.0

    def table(self) -> list[list[str]]:
        """Return the heading and the rows as texts."""
        body = [[shown(row.get(key), title) for key, title in self.columns.items()] for row in self.rows]
        return [list(self.columns.values()), *body]

    def lines(self) -> str:
        """Return the part for a terminal."""
        head = f"{self.name:<12} {self.status:<8} {duration(self.seconds):>6}  {self.title}"
        table = self.table() if self.rows else []
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        texts = [head]
        for row in table:
            cells = [cell.ljust(width) if n == 0 else cell.rjust(width) for n, (cell, width) in
                     enumerate(zip(row, widths, strict=True))]  # fmt: skip
            texts.append("             " + "  ".join(cells).rstrip())
        texts += [f"             WRONG: {line}" for line in self.wrong]
        texts += [f"             note: {line}" for line in self.notes]
        return "\n".join(texts) + "\n"

    def markdown(self) -> str:
        """Return the part as a section of a page."""
        texts = [f"**{self.title}** (`{self.name}`): {self.status}, {duration(self.seconds)}", ""]
        if self.rows:
            head, *body = self.table()
            texts.append("| " + " | ".join(head) + " |")
            texts.append("|---|" + "---:|" * (len(head) - 1))
            texts += ["| " + " | ".join(row) + " |" for row in body]
            texts.append("")
        texts += [f"* wrong: {line}" for line in self.wrong]
        texts += [f"* {line}" for line in self.notes]
        return "\n".join(texts).rstrip() + "\n"

    def as_dict(self) -> dict[str, Any]:
        """Return the part for JSON."""
        return {
            "status": self.status,
            "seconds": round(self.seconds, 3),
            "rows": self.rows,
            "notes": self.notes,
            "wrong": self.wrong,
        }


def shown(value: Any, title: str = "") -> str:
    """Return a value as a cell of a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{100 * value:.1f}" if title.startswith("%") else f"{value:.4g}" if value < 1e4 else f"{value:.0f}"
    return str(value)


@dataclass
class Report:
    """A benchmark: where it ran, and its parts so far.

    Attributes:
        facts: device, driver, versions, date, commit; in the order in which they are shown.
    """

    facts: dict[str, Any]
    parts: list[PartResult] = field(default_factory=list)
    is_complete: bool = False

    @property
    def wrong(self) -> list[str]:
        """Everything that is not what it should be."""
        return [f"{part.name}: {line}" for part in self.parts for line in part.wrong]

    @property
    def failed(self) -> list[str]:
        """Names of parts that ended with an error."""
        return [part.name for part in self.parts if part.status in ("failed", "wrong", "running")]

    def verdict(self) -> str:
        """Return the last line."""
        if self.wrong:
            return f"WRONG: {'; '.join(self.wrong)}"
        if self.failed:
            return f"failed: {', '.join(self.failed)}"
        if not self.is_complete:
            return "not complete"
        measured = [part for part in self.parts if part.status in ("done", "partial")]
        rest = [f"{part.name} {part.status}" for part in self.parts if part.status not in ("done",)]
        return f"ok: {plural(len(measured), 'part')}" + (f" ({', '.join(rest)})" if rest else "")

    def markdown(self) -> str:
        """Return a section for docs/gpu.md."""
        device, date = self.facts.get("device", "?"), str(self.facts.get("date", ""))[:10]
        lines = [f"### {device}, {date}", "", f"{self.verdict()}.", "", "| | |", "|---|---|"]
        lines += [f"| {name.replace('_', ' ')} | {shown(value)} |" for name, value in self.facts.items()]
        return "\n".join(lines) + "\n\n" + "\n".join(part.markdown() for part in self.parts)

    def json(self) -> str:
        """Return everything as one JSON object, indented."""
        content = {
            **self.facts,
            "complete": self.is_complete,
            "ok": not self.wrong and not self.failed and self.is_complete,
            "parts": {part.name: part.as_dict() for part in self.parts},
        }
        return json.dumps(content, indent=1) + "\n"
