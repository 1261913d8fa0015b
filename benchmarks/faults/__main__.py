"""Run faults and print the table; results are written as they come."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.faults.kinds import Fault, draw
from benchmarks.faults.real import Real
from benchmarks.faults.simulated import run_simulated
from benchmarks.faults.tally import Tally


def run_all(faults: Iterable[Fault], folder: Path, record: Path | None = None, until: float = float("inf")) -> Tally:
    """Run faults one after the other.

    Args:
        record: gets a line of JSON for each.
        until: of time.monotonic(); no fault begins later.
    """
    tally, real = Tally(), Real(folder)
    for number, fault in enumerate(faults):
        began = time.monotonic()
        if began > until:
            break
        found = run_simulated(fault, folder / f"run-{number}") if fault.hosts else real.run(fault, number)
        is_right = {*found.causes} <= {*fault.causes, *(("unknown",) if "regression" in fault.causes else ())}
        result = replace(
            found, is_right=is_right, recoverable=fault.recoverable, seconds=round(time.monotonic() - began, 2)
        )
        tally.results.append(result)
        if record:
            with open(record, "a", encoding="utf8") as file:
                file.write(json.dumps({"number": number, **asdict(result)}) + "\n")
        is_well = not (result.lost or result.excluded or not result.is_right)
        if is_well and (result.recovered or not result.recoverable):
            for path in folder.glob(f"run-{number}*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return tally


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no fault begins later")
    parser.add_argument("--record", type=Path, help="gets a line of JSON for each fault")
    parser.add_argument("--folder", type=Path, help="keeps the runs that did not go as they are to")
    given = parser.parse_args()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="megads-faults-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * given.minutes
    tally = run_all(draw(given.count, given.seed), folder, given.record, until)
    print(tally.table())
    print("\n".join(tally.problems()))
    print(f"{len(tally.results)} faults, {sum(each.seconds for each in tally.results):.0f} s, runs in {folder}")


if __name__ == "__main__":
    main()
