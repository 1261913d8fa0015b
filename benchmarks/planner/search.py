"""How long a plan takes: the best layouts of 1T on 98,304 ranks. ``python -m benchmarks.planner.search``."""

from __future__ import annotations

import time
from pathlib import Path

from megads.config.sources.resolve import resolve
from megads.plan.place import place_of
from megads.plan.search.search import Found, search

ROOT = Path(__file__).parents[2]
CASES = (("gpt-1T", "aurora", 8192), ("70B", "aurora", 256), ("gpt3-175B", "frontier", 1024), ("7B", "polaris", 16))


def plan(preset: str, machine: str, hosts: int) -> tuple[Found, float]:
    """Return what a search finds on ``hosts`` hosts, and the seconds of one core that it takes."""
    started = time.process_time()
    resolved = resolve(preset, env={"NHOSTS": str(hosts)}, machine=machine, root=ROOT, num_hosts=hosts)
    found = search(resolved, place_of(machine, root=ROOT), hosts)
    return found, time.process_time() - started


def main() -> None:
    """Print a row for each of ``CASES``."""
    print("| preset | machine | ranks | candidates | timed | seconds of a core |")
    print("|---|---|---:|---:|---:|---:|")
    for preset, machine, hosts in CASES:
        found, seconds = plan(preset, machine, hosts)
        ranks = found.ask.world_size
        print(f"| {preset} | {machine} | {ranks:,} | {found.looked:,} | {found.timed} | {seconds:.1f} |")


if __name__ == "__main__":
    main()
