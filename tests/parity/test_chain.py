"""One run over eight jobs on 1, 2, 4 and 8 ranks in changing layouts is the run that one rank does without a stop.

Every link has the real loop, loader, checkpoints and engine; only the plan says how long the whole is. The tokens of
every step are the same to the last one, the losses but for rounding.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.parity.layouts import Layout
from tests.ranks import run_ranks

STEPS = 3  # of a link
PARTITIONED = {"deepspeed.param_persistence_threshold": "0"}
LINKS = [
    Layout("gqa", tp=2, zero=1, engine="native"),
    Layout("gqa", dp=4, zero=3, engine="native"),
    Layout("gqa", pp=2, tp=2, dp=2, zero=1, engine="native"),
    Layout("gqa", zero=0),
    Layout("gqa", sp=2, zero=2, more={"parallel.scatter_norms": "false"}),
    Layout("gqa", pp=4, zero=0, engine="native"),
    Layout("gqa", tp=2, sp=2, dp=2, zero=2, engine="native", more={"parallel.scatter_norms": "true"}),
    Layout("gqa", dp=2, zero=3, more=PARTITIONED),
]
PLANNED = STEPS * len(LINKS)
SETTINGS = {
    "model.num_layers": "4",
    "model.hidden_dropout": "0",
    "model.attention_dropout": "0",
    "train.global_batch": "8",
    "train.rampup_batch_size": "4 4 24",
    "train.planned_iters": str(PLANNED),
    "optim.lr": "0.003",
    "optim.lr_decay_iters": "0",
    "optim.weight_decay_incr_style": "linear",
    "optim.end_weight_decay": "0.2",
    "optim.start_weight_decay": "0",
    "checkpoint.save_interval": "0",
}


class Reading:
    """An engine that writes down a digest of the samples that all ranks together are given for a step."""

    def __init__(self, engine: Any, groups: Any):
        self._real, self._groups = engine, groups
        self.digests: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def train_step(self, batches: Any, *args: Any, **more: Any) -> Any:
        from tests.parity.order import together

        samples = together([batch.tolist() for batch in batches], self._groups)
        self.digests.append(hashlib.blake2b(repr(samples).encode()).hexdigest())
        return self._real.train_step(batches, *args, **more)


def _link(layout: Layout, folder: str, until: int) -> None:
    """Train on to iteration ``until`` from what the last link left; append the digests of the steps."""
    from tests.parity.loops import loop_of

    loop = loop_of(layout, Path(folder), **{**SETTINGS, "train.train_iters": str(until)})
    training = loop.training
    training.engine = Reading(training.engine, training.groups)
    loop.run()
    if training.groups.rank == 0:
        with open(Path(folder) / "tokens", "a", encoding="ascii") as file:
            file.writelines(f"{digest}\n" for digest in training.engine.digests)


def _told(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    rows = [orjson.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines()]
    return [row for row in rows if "lm_loss" in row], (folder / "tokens").read_text().split()


@pytest.mark.dist
def test_eight_links_in_changing_layouts_are_the_run_of_one_rank(tmp_path):
    assert {layout.ranks for layout in LINKS} == {1, 2, 4, 8}
    whole, chain = tmp_path / "whole", tmp_path / "chain"
    run_ranks(1, _link, Layout("gqa", zero=0, engine="native"), str(whole), PLANNED)
    for number, layout in enumerate(LINKS, start=1):
        run_ranks(layout.ranks, _link, layout, str(chain), STEPS * number)
    (rows, tokens), (linked, linked_tokens) = _told(whole), _told(chain)
    assert [row["iteration"] for row in linked] == [row["iteration"] for row in rows] == [*range(1, PLANNED + 1)]
    assert linked_tokens == tokens
    assert len(set(tokens)) == PLANNED
    for key in ("learning_rate", "weight_decay", "global_batch_size", "consumed_samples"):
        assert [row[key] for row in linked] == [row[key] for row in rows]
    assert len({row["global_batch_size"] for row in rows}) == 2
    for key in ("lm_loss", "grad_norm"):
        assert [row[key] for row in linked] == pytest.approx([row[key] for row in rows], rel=1e-5)
    # What is compared moves.
    assert max(row["lm_loss"] for row in rows) > 1.01 * min(row["lm_loss"] for row in rows)
