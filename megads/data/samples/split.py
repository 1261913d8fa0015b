"""Which documents of a file belong to training, validation and test; both of Megatron's rules."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from megads.errors import DataError

RULES = ("core", "legacy")


def split_documents(split: Sequence[float], n: int, rule: str = "core") -> list[range]:
    """Cut documents ``0..n-1`` into consecutive ranges proportional to ``split``.

    Three entries (train, valid, test) at least, missing ones are 0. With the rule ``core``
    the borders are the cumulative shares times ``n``, rounded half to even (Megatron-core);
    with ``legacy`` each range is rounded alone, and what the sum lacks of ``n`` or exceeds it
    by moves every border (older Megatron, BigScience, DeepSpeed).
    """
    shares = [*split, *[0.0] * (3 - len(split))]
    total = sum(shares)
    if not all(math.isfinite(share) and share >= 0 for share in shares) or not total > 0:
        raise DataError(f"split {', '.join(map(str, split))}: the shares must be 0 or larger, and one of them positive")
    fractions = [share / total for share in shares]
    if rule == "core":
        borders = [0, *(round(border * n) for border in itertools.accumulate(fractions))]
    else:
        ends = list(itertools.accumulate(round(fraction * n) for fraction in fractions))
        borders = [0, *(min(n, max(0, end - (ends[-1] - n))) for end in ends)]
    return [range(start, end) for start, end in itertools.pairwise(borders)]
