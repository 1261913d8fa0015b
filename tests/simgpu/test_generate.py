"""Generation on the simulated device gives the CPU's tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.inference.theirs import imported, prompts, runner_of
from tests.ranks import run_ranks
from tests.simgpu.device import DEVICE, run_on_device


def _generates(device: str, kind: str, degrees: dict[str, int], folder: Path, answers: Path) -> None:
    import torch
    import torch.distributed as dist

    from megads.comm.grid import Grid
    from megads.inference.engine import Engine
    from megads.inference.sampling import Sampling

    runner = runner_of(kind, Grid(**degrees), dist.get_rank(), folder=folder, device=torch.device(device))
    assert {weight.device.type for weight in runner.module.parameters()} == {torch.device(device).type}
    engine = Engine(runner, eos=(52,))
    asked = [Sampling(max_tokens=6, temperature=0.0), Sampling(max_tokens=9, temperature=0.8, top_p=0.9, seed=3)]
    requests: list[Any] = [engine.add(each, asked[i % 2]) for i, each in enumerate(prompts())]
    list(engine.run())
    (answers / f"{device[:3]}-{dist.get_rank()}").write_text(repr([request.output for request in requests]))


@pytest.mark.dist
@pytest.mark.parametrize(("kind", "degrees"), [("llama3", {}), ("gpt2", {"tensor": 2})])
def test_generation_gives_the_tokens_of_the_cpu(kind, degrees, tmp_path):
    size, folder = max([1, *degrees.values()]), imported(kind)
    run_on_device(size, _generates, DEVICE, kind, degrees, folder, tmp_path)
    run_ranks(size, _generates, "cpu", kind, degrees, folder, tmp_path, timeout_s=120)
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert len(found) == 2 * size
    assert set(found.values()) == {found["cpu-0"]}
    assert found["cpu-0"].count(",") > 20
