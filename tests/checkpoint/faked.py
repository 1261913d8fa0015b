"""Checkpoints without tensors: a manifest is all that is read before ranks start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megads.checkpoint.format.folders import checkpoint_name
from megads.checkpoint.format.manifest import Manifest, write_manifest
from megads.checkpoint.resume.compatibility import engine_of, shape_of
from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.sizes import model_degree
from megads.config.sources.resolve import resolve

TINY = {
    **{"NLAYERS": "2", "HIDDEN": "64", "HEADS": "4", "SEQ": "32", "VOCAB_SIZE": "100", "TRAIN_ITERS": "12"},
    **{"TOKENIZER_TYPE": "NullTokenizer", "GLOBAL_BATCH": "8"},
}
ADAM = ("weight", "exp_avg", "exp_avg_sq")


def derived(env: dict[str, str] | None = None, **settings: str) -> RunConfig:
    """Return the derived settings of a tiny run on as few ranks as its layout has."""
    resolved = resolve(env={**TINY, **(env or {}), **settings}, machine="generic")
    return derive(resolved, num_hosts=1, ranks_per_host=model_degree(resolved.run), vocab_size=0).run


def fake(folder: Path, iteration: int, run: RunConfig | None = None, **changes: Any) -> Path:
    """Make a checkpoint of ``run`` in ``folder`` and return its path."""
    run = run or derived()
    facts: dict[str, Any] = {
        "iteration": iteration,
        "kinds": ADAM,
        "layout": {"pipe": 1, "data": 1, "seq": 1, "tensor": 1, "zero_stage": 0},
        "model": shape_of(run),
        "settings": run.model_dump(),
        "progress": {"iteration": iteration},
        "tensors": {},
        "files": {},
        "runs": {},
        "about": {"engine": engine_of(run)},
    }
    path = folder / checkpoint_name(iteration)
    path.mkdir(parents=True)
    write_manifest(path, Manifest(**{**facts, **changes}))
    return path
