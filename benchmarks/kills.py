"""Kill training runs at random moments, most of them within a save, and see that nothing is lost.

    python -m benchmarks.kills --count 200 [--seed 0] [--folder DIR]

Runs of two ranks of a tiny model (the program's own worker, gloo, real files) save every step or
two, blocking or in the background. One rank, or all at once, are killed with SIGKILL: some moments
after a save began, some time after a step, or while a run is being set up; where one is killed,
the other is left alone for a moment first. After each kill, before anything else looks there:

* every checkpoint of the folder is whole, byte by byte;
* the newest is no older than the settings promise: SAVE_INTERVAL steps behind the last step that
  was reported when saves block, 2 * SAVE_INTERVAL when they are written in the background (what
  was being written when the next began, is whole);
* no more is left of unfinished saves than one save leaves.

The next start must resume from that newest checkpoint and pass over none. After some kills the
run is left alone; its losses must be those of a run that was never killed, bit for bit, its last
weights and moments too, and nothing must be left of unfinished saves.

Starts are cheap: one process imports torch and DeepSpeed, and forks the ranks of every start.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.victims import ITERATIONS, Victim, Wrong, Zygote, make_run_folder, write_data
from megads.checkpoint.format.folders import iteration_of, list_checkpoints
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.format.verify import verify
from megads.monitor.run_state.outcome import read_outcome

KILLS_OF_A_RUN = 8
LAYOUTS: tuple[dict[str, str], ...] = (
    {"parallel.zero_stage": "1", "train.dtype": "bf16"},
    {"parallel.tensor": "2", "train.dtype": "fp32"},
    {"parallel.zero_stage": "0", "train.dtype": "fp32"},
    {"parallel.zero_stage": "3", "train.dtype": "bf16"},
)


@dataclass(frozen=True)
class Case:
    """One run that is killed."""

    layout: int
    background: bool
    interval: int
    keep: int

    @property
    def most_lost(self) -> int:
        """How many steps may have to be done again."""
        return self.interval * (2 if self.background else 1)

    def overrides(self) -> dict[str, str]:
        saving = {"in_background": self.background, "save_interval": self.interval, "keep": self.keep}
        return {**LAYOUTS[self.layout], **{f"checkpoint.{name}": str(value) for name, value in saving.items()}}


@dataclass
class Tally:
    """What happened."""

    kills: int = 0
    within: Counter[str] = field(default_factory=Counter)  # where the run was -> kills
    lost: Counter[int] = field(default_factory=Counter)  # steps to be done again -> kills
    starts: int = 0
    finished: int = 0  # runs

    def __str__(self) -> str:
        places = ", ".join(f"{place} {count}" for place, count in sorted(self.within.items()))
        lost = ", ".join(f"{steps}: {count}" for steps, count in sorted(self.lost.items()))
        return (
            f"{self.kills} kills ({places}), {self.starts} starts, {self.finished} runs finished; "
            f"steps lost, and how often: {lost}"
        )


def cases() -> Iterable[Case]:
    """Yield all kinds of runs, forever, those that differ most first."""
    while True:
        for index in range(16):
            yield Case(index % len(LAYOUTS), bool((index + index // 4) % 2), 1 + index // 2 % 2, index // 4 % 3)


def same_state(one: Path, other: Path) -> None:
    """Check that two checkpoints hold the same numbers."""
    with Reader(one) as first, Reader(other) as second:
        for name in first.manifest.tensors:
            for kind in first.manifest.kinds:
                if first.whole(name, kind).tobytes() != second.whole(name, kind).tobytes():
                    raise Wrong(f"{one} and {other} differ in {kind} of {name}")


@dataclass
class Campaign:
    """Many runs, killed again and again, in one folder."""

    folder: Path
    zygote: Zygote
    rng: random.Random
    tally: Tally = field(default_factory=Tally)
    _wholes: dict[int, Victim] = field(default_factory=dict)
    _prefix: str = ""

    def make(self, name: str, overrides: Mapping[str, str]) -> Victim:
        """Return a run that has not begun."""
        self._prefix = self._prefix or write_data(self.folder)
        make_run_folder(self.folder / name, self._prefix, overrides)
        return Victim(self.folder / name, self.zygote, self.rng)

    def whole(self, layout: int) -> Victim:
        """Return the run of a layout that was never killed, and never saved but at its end."""
        if layout not in self._wholes:
            run = self.make(f"whole-{layout}", {**LAYOUTS[layout], "checkpoint.save_interval": "0"})
            run.finish()
            self._wholes[layout] = run
        return self._wholes[layout]

    def run(self, case: Case, kills: int) -> None:
        """Kill one run so often, leave it alone, and compare.

        Raises:
            Wrong: something was lost.
        """
        whole, tally = self.whole(case.layout), self.tally
        victim = self.make(f"killed-{tally.finished}", case.overrides())
        newest: Path | None = None
        goal = tally.kills + kills
        while tally.kills < goal:
            said = len(victim.log())
            place = victim.kill()
            tally.starts += 1
            victim.check_resumed(newest, said)
            if not place:
                break
            tally.kills += 1
            tally.within[place] += 1
            tally.lost[victim.look(case.most_lost)] += 1
            newest = next(reversed(list_checkpoints(victim.checkpoints)), None)
        said = len(victim.log())
        if read_outcome(victim.run_dir) is None or victim.done() < ITERATIONS:
            victim.finish()
            tally.starts += 1
            victim.check_resumed(newest, said)
        self.compare(victim, whole, case)
        tally.finished += 1
        shutil.rmtree(victim.run_dir)

    def compare(self, victim: Victim, whole: Victim, case: Case) -> None:
        """Check that a run that was killed ended as one that was not."""
        if victim.losses() != whole.losses() or len(victim.losses()) != ITERATIONS:
            raise Wrong(f"{victim.run_dir}, {case}: losses {victim.losses()} instead of {whole.losses()}")
        found = list_checkpoints(victim.checkpoints)
        for path in found:
            verify(path)
        expected = sorted({*range(case.interval, ITERATIONS + 1, case.interval), ITERATIONS})[-case.keep :]
        # Killed after the last save, before the oldest checkpoint was gone, it has no other save to remove it.
        most = len(expected) + (case.keep > 0)
        held = [iteration_of(path) for path in found]
        if held[-len(expected) :] != expected or len(held) > most or victim.unfinished():
            raise Wrong(f"{victim.checkpoints}: holds {sorted(os.listdir(victim.checkpoints))}, not {expected}")
        same_state(found[-1], list_checkpoints(whole.checkpoints)[-1])


def campaign(count: int, seed: int, folder: Path, tell: Callable[[str], None]) -> Tally:
    """Kill runs ``count`` times and return what happened.

    Raises:
        Wrong: something was lost.
    """
    with Zygote() as zygote:
        work = Campaign(folder, zygote, random.Random(seed))
        for case in cases():
            if work.tally.kills >= count:
                return work.tally
            work.run(case, min(KILLS_OF_A_RUN, count - work.tally.kills))
            tell(f"{case}: {work.tally}")
    raise AssertionError


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=200, help="kills")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--folder", type=Path, help="for the runs; removed when all is well")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="megads-kills-", dir=asked.folder))
    started = time.monotonic()
    try:
        tally = campaign(asked.count, asked.seed, folder, lambda line: print(line, flush=True))
    except Wrong as problem:
        sys.exit(f"WRONG: {problem}\nseed {asked.seed}; the runs are in {folder}")
    shutil.rmtree(folder)
    print(f"all right in {time.monotonic() - started:.0f} s: {tally}")


if __name__ == "__main__":
    main()
