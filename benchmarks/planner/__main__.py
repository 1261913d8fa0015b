"""Compare the planner's predictions with published measurements, row by row.

``python -m benchmarks.planner`` prints the tables; ``--fit`` first fits and writes the constants of the time model;
``--write`` leaves out model by model, and writes errors.json and the tables of docs/planner.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.planner import fit, memory
from benchmarks.planner.report import BEGIN, END, errors_of, held_back, report, write_errors
from megads.plan.time.constants import fitted

DOCS = Path(__file__).parents[2] / "docs/planner.md"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="fit the constants and write them")
    parser.add_argument("--write", action="store_true", help="write errors.json and docs/planner.md")
    args = parser.parse_args()
    given = fit.measured()
    if args.fit:
        fit.write(fit.fit(given))
        fitted.cache_clear()
    by = fitted()
    left_out = fit.left_out(given, by) if args.write else None
    text = report(given, left_out, held_back(), by)
    print(text)
    if args.write and left_out is not None:
        found = memory.summary([each for each in memory.results() if not each.unknown])
        write_errors(errors_of(given, left_out), found)
        page = DOCS.read_text()
        before, _, rest = page.partition(BEGIN)
        DOCS.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
