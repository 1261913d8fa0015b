"""Numbers as a person reads them. No imports of the package."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

SCALES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def count(value: float) -> str:
    """Return 1234567 as ``1.23M``."""
    for scale, letter in SCALES:
        if abs(value) >= scale:
            return f"{value / scale:.3g}{letter}" if abs(value) < 999.5 * scale else f"{value / scale:.0f}{letter}"
    return f"{value:.4g}"


def size(num_bytes: float) -> str:
    """Return bytes as ``1.2 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.3g} {unit}" if abs(num_bytes) < 999.5 else f"{num_bytes:.0f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.3g} TiB" if abs(num_bytes) < 999.5 else f"{num_bytes:,.0f} TiB"


def four_digits(value: float) -> str:
    """Return ``1008`` or ``10.1k``: four digits, never an exponent."""
    return count(value) if 9999.5 <= abs(value) < math.inf else f"{value:.4g}"


def seconds(value: float) -> str:
    """Return a measured time as ``0.481s``, ``1.40s``, ``12.3s`` or ``2m05s``, at most six characters."""
    for limit, decimals in ((1, 3), (10, 2), (60, 1)):
        if abs(value) < limit - 0.5 * 10**-decimals:
            return f"{value:.{decimals}f}s"
    return duration(value)


def exact(value: float) -> str:
    """Return a time with three digits, as ``8.76 ms``, ``0.412 s`` or ``12.3 s``; from 100 s on a duration."""
    if abs(value) >= 99.95:
        return duration(value)
    return f"{value:.3g} s" if abs(value) >= 0.09995 else f"{1e3 * value:.3g} ms"


def duration(seconds: float) -> str:
    """Return seconds as ``4s``, ``1m05s``, ``2h03m`` or ``3d04h``."""
    if not math.isfinite(seconds):
        return "?"
    total = round(seconds)
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m{total % 60:02d}s"
    if total < 86400:
        return f"{total // 3600}h{total % 3600 // 60:02d}m"
    return f"{total // 86400}d{total % 86400 // 3600:02d}h"


def steady_clock() -> Callable[[], float]:
    """Return a clock of unix seconds that starts now and is not moved when somebody sets the host's."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


def clock(then: float, now: float) -> str:
    """Return unix seconds as ``18:00``, with the date when that is not today, with seconds in the next ten minutes."""
    parts = time.localtime(then)
    if parts[:3] != time.localtime(now)[:3]:
        return time.strftime("%H:%M on %Y-%m-%d", parts)
    return time.strftime("%H:%M:%S" if then - now < 600 else "%H:%M", parts)
