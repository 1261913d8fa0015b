"""A file of stages for tests, and a run that is derived from it."""

from __future__ import annotations

from pathlib import Path

from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve


def write_stages(folder: Path, text: str) -> Path:
    """Write ``text`` as a file of stages and return its path."""
    path = folder / "stages.yaml"
    path.write_text(text)
    return path


def derived(path: Path, ranks: int = 1, **env: str) -> RunConfig:
    """Return a run of two samples of 16 tokens a step with the stages of ``path``."""
    given = {"GLOBAL_BATCH": "2", "MICRO_BATCH": "1", "SEQ": "16", "DATA_STAGES": str(path), **env}
    if given["SEQ"] == "0":
        del given["SEQ"]
    resolved = resolve("tiny", env=given, machine="cpu")
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=2048).run
