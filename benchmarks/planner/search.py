"""How long a plan takes: the best layouts of 1T on 98,304 ranks. ``python -m benchmarks.planner.search``."""

from __future__ import annotations

import time
from pathlib import Path

from megads.config.sources.resolve import resolve
from megads.plan.places.place import place_of
from megads.plan.search.search import Found, search

ROOT = Path(__file__).parents[2]
CASES = (("gpt-1T", "pvc", 8192), ("70B", "pvc", 256), ("gpt3-175B", "mi250x", 1024), ("7B", "a100", 16))
"""Preset, device on its usual hosts, hosts."""


def plan(preset: str, device: str, hosts: int) -> tuple[Found, float]:
    """Return what a search finds on ``hosts`` hosts, and the seconds of one core that it takes."""
    started = time.process_time()
    resolved = resolve(preset, env={"NHOSTS": str(hosts)}, machine="generic", root=ROOT, num_hosts=hosts)
    found = search(resolved, place_of(device), hosts)
    return found, time.process_time() - started


def main() -> None:
    """Print a row for each of ``CASES``."""
    print("| preset | device | ranks | candidates | timed | seconds of a core |")
    print("|---|---|---:|---:|---:|---:|")
    for preset, device, hosts in CASES:
        found, seconds = plan(preset, device, hosts)
        ranks = found.ask.world_size
        print(f"| {preset} | {device} | {ranks:,} | {found.looked:,} | {found.timed} | {seconds:.1f} |")


if __name__ == "__main__":
    main()
