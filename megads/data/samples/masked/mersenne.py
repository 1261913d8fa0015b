"""The random numbers of C++: ``std::mt19937`` and ``std::mt19937_64``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_SIZE, _MIDDLE = 312, 156
_ROUNDS = 64  # of numbers that are tempered together
_MULTIPLIER = 6364136223846793005
_TWIST = np.uint64(0xB5026F5AA96619E9)
_UPPER, _LOWER = np.uint64(0xFFFFFFFF80000000), np.uint64(0x7FFFFFFF)


def mersenne32(seed: int) -> np.random.RandomState:
    """Return a generator whose ``randint(0, 2**32, n, np.uint32)`` are the numbers of ``std::mt19937(seed)``."""
    return np.random.RandomState(seed)


class Mersenne64:
    """``std::mt19937_64``: many numbers at a time.

    Args:
        seed: 0 .. 2**64 - 1.
    """

    def __init__(self, seed: int):
        state = [seed]
        for i in range(1, _SIZE):
            state.append((_MULTIPLIER * (state[-1] ^ (state[-1] >> 62)) + i) % 2**64)
        self._state = np.array(state, np.uint64)
        self._ready: npt.NDArray[np.uint64] = np.empty(0, np.uint64)

    def draw(self, count: int) -> npt.NDArray[np.uint64]:
        """Return the next ``count`` numbers, uint64."""
        parts: list[npt.NDArray[np.uint64]] = [self._ready]
        missing = count - len(self._ready)
        while missing > 0:
            parts.append(self._more())
            missing -= len(parts[-1])
        drawn = np.concatenate(parts)
        self._ready = drawn[count:]
        return drawn[:count]

    def _more(self) -> npt.NDArray[np.uint64]:
        rows = np.empty((_ROUNDS, _SIZE), np.uint64)
        for row in rows:
            self._turn()
            row[:] = self._state
        x = rows.reshape(-1)
        x ^= (x >> np.uint64(29)) & np.uint64(0x5555555555555555)
        x ^= (x << np.uint64(17)) & np.uint64(0x71D67FFFEDA60000)
        x ^= (x << np.uint64(37)) & np.uint64(0xFFF7EEE000000000)
        x ^= x >> np.uint64(43)
        return x

    def _turn(self) -> None:
        """Make the next state; each half needs only the old numbers and the half before it."""
        state = self._state
        for begin, end, other in ((0, _MIDDLE, _MIDDLE), (_MIDDLE, _SIZE - 1, -_MIDDLE), (_SIZE - 1, _SIZE, -_MIDDLE)):
            follow = state[begin + 1 : end + 1] if end < _SIZE else state[:1]
            mixed = (state[begin:end] & _UPPER) | (follow & _LOWER)
            state[begin:end] = (
                state[begin + other : end + other] ^ (mixed >> np.uint64(1)) ^ ((mixed & np.uint64(1)) * _TWIST)
            )
