"""Random models of transformers, and ours with the same weights, in any layout."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from megads.checkpoint.convert.huggingface.import_ import import_folder
from megads.comm.grid import Grid
from megads.comm.groups import Groups, make_groups
from megads.inference.load import load_model, open_weights
from megads.inference.runner import Runner
from tests.checkpoint.convert.huggingface.models import their_module

_kept: list[TemporaryDirectory[str]] = []
CPU = torch.device("cpu")


@cache
def imported(kind: str) -> Path:
    """Return a folder with a random model of transformers in ``theirs`` and ours of it in ``ours``."""
    _kept.append(TemporaryDirectory(prefix=f"megads-{kind}-"))
    folder = Path(_kept[-1].name)
    their_module(kind).save_pretrained(folder / "theirs")
    import_folder(folder / "theirs", folder / "ours", vocab_multiple=8)
    return folder


def runner_of(
    kind: str,
    grid: Grid,
    rank: int,
    num_slots: int = 4,
    folder: Path | None = None,
    source: str = "ours",
    device: torch.device = CPU,
) -> Runner:
    """Return a runner of our model, on one rank of ``grid``; ``source``: ``ours`` or ``theirs``."""
    groups = make_groups(grid, rank) if grid.world_size > 1 else Groups(grid, 0)
    weights = open_weights((folder or imported(kind)) / source)
    module = load_model(weights, groups, device, torch.float32)
    weights.close()
    return Runner(module, groups, context=weights.context, num_slots=num_slots)


def prompts(lengths: Sequence[int] = (1, 7, 3, 12, 5)) -> list[list[int]]:
    """Return random tokens."""
    draw = torch.Generator().manual_seed(3)
    return [torch.randint(5, 53, (length,), generator=draw).tolist() for length in lengths]


def their_text(module: Any, prompt: Sequence[int], count: int, **more: Any) -> Any:
    """Return what transformers generates, without an end."""
    tokens = torch.tensor([list(prompt)])
    module.generation_config.eos_token_id = None
    with torch.no_grad():
        return module.generate(
            tokens, max_new_tokens=count, pad_token_id=0, attention_mask=torch.ones_like(tokens), **more
        )
