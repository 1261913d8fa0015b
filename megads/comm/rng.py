"""Random-number streams: what must be equal on tensor ranks, and what must differ.

torch's default generators are the same on every tensor and data rank of a pipeline stage,
so that dropout on replicated activations agrees; they differ per sequence rank, whose tokens
are others. The stream ``model-parallel`` differs per tensor rank as well, for dropout on
activations that are split. Python's and numpy's generators, which may choose samples, are
the same on all ranks of a stage. The seeds::

    python, numpy     seed + 100 * stage
    torch (default)   seed + 100 * stage + 2**20 * sequence rank
    model-parallel    seed + 100 * stage + 2**20 * sequence rank + 2718 + tensor rank

On sequence rank 0 these are Megatron-LM's; the step of ``2**20`` is wider than the seeds of
ten thousand stages, so no two ranks meet.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megads.comm.groups import Groups
from megads.errors import CheckpointError

MODEL_PARALLEL = "model-parallel"
_STAGE_STEP = 100
_SEQUENCE_STEP = 2**20
_MODEL_PARALLEL_OFFSET = 2718


class RngStreams:
    """The default generators of one device, and named streams that can stand in for them.

    Args:
        device: whose generator is switched along with the CPU's.
        seeds: name -> seed of every stream.
    """

    def __init__(self, device: torch.device, seeds: Mapping[str, int]):
        self.device = device
        self._module = None if device.type == "cpu" else torch.get_device_module(device)
        before = self._current()
        self._states: dict[str, dict[str, Tensor]] = {}
        for name, seed in seeds.items():
            self._seed(seed)
            self._states[name] = self._current()
        self._use(before)

    @contextmanager
    def fork(self, name: str = MODEL_PARALLEL) -> Iterator[None]:
        """Draw from the stream ``name`` inside the block; the default generators do not advance."""
        before = self._current()
        self._use(self._states[name])
        try:
            yield
        finally:
            self._states[name] = self._current()
            self._use(before)

    def states(self) -> dict[str, dict[str, Tensor]]:
        """Return the states of the named streams, without the default generators, for :meth:`use_states`.

        What is returned does not change when numbers are drawn later.
        """
        return dict(self._states)

    def use_states(self, states: Mapping[str, dict[str, Tensor]]) -> None:
        """Set the named streams back to what :meth:`states` gave. Not inside a :meth:`fork`."""
        self._states = dict(states)

    def state_dict(self) -> dict[str, Any]:
        """Return every generator's state: python, numpy, torch and the named streams.

        Only tensors, numbers, strings, lists, tuples and dictionaries, so that
        ``torch.load(weights_only=True)`` reads it back.
        """
        kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
        return {
            "python": random.getstate(),
            "numpy": (str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)),
            "default": self._current(),
            "streams": dict(self._states),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave.

        Raises:
            CheckpointError: the streams or the kind of device are others than ours.
        """
        ours, theirs = sorted(self._states), sorted(state["streams"])
        if ours != theirs:
            raise CheckpointError(f"RNG state has the streams {', '.join(theirs)}; this run has {', '.join(ours)}")
        if set(state["default"]) != set(self._current()):
            raise CheckpointError(
                f"RNG state was saved for {' + '.join(state['default'])}; this run is on {' + '.join(self._current())}"
            )
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))
        kind, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
        self._use(state["default"])
        self._states = {name: dict(saved) for name, saved in state["streams"].items()}

    def _current(self) -> dict[str, Tensor]:
        states = {"cpu": torch.get_rng_state()}
        if self._module is not None:
            states["device"] = self._module.get_rng_state(self.device)
        return states

    def _use(self, states: Mapping[str, Tensor]) -> None:
        torch.set_rng_state(states["cpu"])
        if self._module is not None:
            self._module.set_rng_state(states["device"], self.device)

    def _seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)
        if self._module is not None:
            self._module.manual_seed(seed)


def seed_everything(seed: int, groups: Groups, device: torch.device) -> RngStreams:
    """Seed python, numpy, torch and the device for this rank; return the named streams."""
    base = seed + _STAGE_STEP * groups.pipe_rank
    random.seed(base)
    np.random.seed(base % 2**32)
    shard = base + _SEQUENCE_STEP * groups.seq_rank
    torch.manual_seed(shard)
    return RngStreams(device, {MODEL_PARALLEL: shard + _MODEL_PARALLEL_OFFSET + groups.tensor_rank})
