"""What a corpus tool reports: a JSON file next to the output, and one line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from megads.data.corpus.frame.job import CorpusJob
from megads.data.preprocess.output import Point
from megads.text.plural import plural

_OWN = ("kept", "changed")
_PREFIXES = ("dropped/", "dropped_bytes/")


@dataclass(frozen=True)
class Summary:
    """What was made: the content of the report."""

    content: dict[str, Any]

    @property
    def line(self) -> str:
        """What was kept and dropped, and why, in one line; first the path of the output."""
        documents, reasons = self.content["documents"], self.content["reasons"]
        text = f"{self.content['output']}  # kept {documents['kept']:,} of {plural(documents['read'], 'document', ',')}"
        if documents["changed"]:
            text += f", changed {documents['changed']:,}"
        if documents["dropped"]:
            named = ", ".join(f"{name} {found['documents']:,}" for name, found in reasons.items())
            text += f"; dropped {documents['dropped']:,}: {named}"
        return text


def summarise(job: CorpusJob, total: Point, counts: dict[str, int], output_bytes: int) -> Summary:
    """Return the report of a job that is done: the same for any number of workers and ranks."""
    names = [name.partition("/")[2] for name in counts if name.startswith("dropped/")]
    reasons = {
        name: {"documents": counts[f"dropped/{name}"], "bytes": counts.get(f"dropped_bytes/{name}", 0)}
        for name in sorted(names, key=lambda name: (-counts[f"dropped/{name}"], name))
    }
    dropped = sum(each["documents"] for each in reasons.values())
    others = {
        name: count for name, count in sorted(counts.items()) if name not in _OWN and not name.startswith(_PREFIXES)
    }
    return Summary(
        {
            "command": job.step.name,
            "options": job.step.options(),
            "inputs": [{"path": each.path, "bytes": each.size} for each in job.inputs],
            "output": job.output,
            "dropped": job.dropped or None,
            "documents": {
                "read": total.documents,
                "kept": counts.get("kept", 0),
                "changed": counts.get("changed", 0),
                "dropped": dropped,
            },
            "bytes": {"read": total.text_bytes, "written": output_bytes},
            "reasons": reasons,
            "bad_lines": {"count": total.bad, "first": list(total.bad_lines)},
            "counts": others,
        }
    )


def as_text(summary: Summary) -> bytes:
    """Return the report as JSON."""
    return (json.dumps(summary.content, indent=2) + "\n").encode()
