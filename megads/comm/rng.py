"""Random numbers of dropout: a pure function of the seed and of the place where they are used.

Before each draw the device's generator is seeded from

* ``DROPOUT_SEED``,
* the number of the micro-batch's first sample, counted from the begin of the run,
* the layer, and which of its dropouts it is,
* the rank's coordinates on the axes along which the activation is split.

So no state of a generator decides the next step, and none is saved: a run that was resumed, or
went back to a checkpoint, draws what the uninterrupted run draws. Neither the order in which
micro-batches and layers are computed (pipeline stages, recomputation, documents of any length)
nor the degrees PP and DP, ZeRO and gradient accumulation change what is drawn. The degrees TP and
SP and ``MICRO_BATCH`` do: they decide the shape of what is drawn at once.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

import numpy as np
import torch

from megads.comm.groups import Groups


@dataclass(frozen=True)
class Draws:
    """Seeds the generator for the dropouts of one micro-batch on one rank.

    Activations that are whole on the tensor ranks are dropped equally there, those that are split
    differ. The tokens of sequence ranks differ, and so do all of their draws. One seed is two
    microseconds on a CPU.
    """

    seed: int  # DROPOUT_SEED
    sample: int  # number of the micro-batch's first sample, counted from the begin of the run
    tensor_rank: int
    seq_rank: int
    device: torch.device  # where the numbers are drawn
    turn: int = 0  # of the passes over the same samples at the same weights, which one this is

    def begin(self, place: str, *, is_split: bool) -> None:
        """Seed the device's generator for the dropout called ``place``, which is unique in the model.

        ``is_split`` says whether tensor ranks hold different parts of what is dropped.
        """
        tensor = self.tensor_rank if is_split else "all"
        key = f"{self.seed}/{self.sample}/{self.turn}/{place}/{self.seq_rank}/{tensor}"
        seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.get_device_module(self.device).manual_seed(seed)


def draws_of(seed: int, sample: int, groups: Groups, device: torch.device, turn: int = 0) -> Draws:
    """Return the :class:`Draws` of this rank for the micro-batch that begins with ``sample``."""
    return Draws(seed, sample, groups.tensor_rank, groups.seq_rank, device, turn)


def seed_everything(seed: int) -> None:
    """Seed the generators of python, numpy, torch and its devices, for libraries that draw from them."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
