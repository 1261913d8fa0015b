"""The fingerprint of a function in a manifest: its conventions, a few rows of tokens and their losses. No torch.

::

    about["function"] = {
        "version": 1,
        "conventions": {"rope_theta": 50000.0, "rope_pairs": "i with i + HEAD_DIM/2", ...},
        "batch": {"kind": "tokens", "rows": [[17, 4, ...], ...], "end": 0},
        "losses": [7.61, 7.58, 7.63, 7.6],    nats per token of each row, as the run computed them when it saved
        "products": "bf16"}                   type in which the run multiplied
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from megads.checkpoint.format.manifest import Manifest

KEY = "function"
"""Of ``about``."""
VERSION = 1
TOKENS = 64
"""Of a row of a stored batch, at most so many are predicted."""
MOST_NUMBERS = 16384
"""Of all rows together, where a row is a whole sample of the run."""

Kind = Literal["tokens", "samples"]


@dataclass(frozen=True)
class Batch:
    """Rows whose loss can be computed again.

    Attributes:
        kind: ``tokens``: of text, each token predicted from those before it; ``samples``: whole samples of the run,
            in the form of its family or task, which only a run of the same form can read.
        rows: of one length.
        end: the token behind which documents start over as the run's settings say; None: rows are whole.
    """

    kind: Kind
    rows: tuple[tuple[int, ...], ...]
    end: int | None = None


@dataclass(frozen=True)
class Record:
    """What a checkpoint says of its function."""

    conventions: Mapping[str, Any]
    batch: Batch | None = None
    losses: tuple[float, ...] = ()
    products: str = "fp32"
    made_with: Mapping[str, str] = field(default_factory=dict)  # of the manifest: versions, engine, device

    @property
    def is_replayable(self) -> bool:
        """Whether there is a batch with finite losses."""
        return self.batch is not None and bool(self.losses) and all(map(math.isfinite, self.losses))

    @property
    def loss(self) -> float:
        """The mean of the rows' losses."""
        return math.fsum(self.losses) / len(self.losses)

    def dump(self) -> dict[str, Any]:
        """Return plain JSON."""
        found: dict[str, Any] = {"version": VERSION, "conventions": dict(self.conventions)}
        if self.batch is None or not self.is_replayable:
            return found
        batch = {"kind": self.batch.kind, "rows": [list(row) for row in self.batch.rows], "end": self.batch.end}
        return {
            **found,
            "batch": batch,
            "losses": list(self.losses),
            "products": self.products,
        }

    def measured(self, losses: Sequence[float], products: str) -> Record:
        """Return the record with other losses."""
        return replace(self, losses=tuple(losses), products=products)


MADE_WITH = ("megads", "torch", "deepspeed", "engine", "device")
"""Entries of ``about`` that a message names where a replay fails."""


def record_of(manifest: Manifest) -> Record | None:
    """Return the record of a checkpoint; None: it has none, or one of another version of megads."""
    found = manifest.about.get(KEY)
    if not isinstance(found, Mapping) or found.get("version") != VERSION:
        return None
    made = {name: str(manifest.about[name]) for name in MADE_WITH if name in manifest.about}
    conventions, batch = found.get("conventions", {}), found.get("batch")
    if not batch:
        return Record(conventions, made_with=made)
    rows = tuple(tuple(map(int, row)) for row in batch["rows"])
    return Record(
        conventions,
        Batch(batch["kind"], rows, batch.get("end")),
        tuple(map(float, found["losses"])),
        str(found["products"]),
        made,
    )
