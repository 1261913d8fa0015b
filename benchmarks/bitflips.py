"""Flip random bits of a finished run and its data cache, and see that nothing is lost silently.

    python -m benchmarks.bitflips --count 1000 [--seed 0] [--folder DIR]

A run of two ranks of a tiny model is trained to its end. Then, one at a time, a bit of one of its files is
flipped: checkpoint, manifest, settings, outcome, heartbeat, metrics, token files and their record, sample
indices. Half of the bits are among the first 4 KiB of a file, where few bits decide much. What reads the file in
the program reads it here, in this process, and the file is put back. The outcome of a flip is one of:

    detected    one line says what is wrong, and exit code 2 follows
    repaired    the file was made again, with a line, and the result is that without the flip
    harmless    the result is that without the flip: nothing that was flipped decides anything
    SILENT      another result, and no word
    TRACEBACK   anything else
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.victims import Victim, Zygote, make_run_folder, write_data
from megads.checkpoint.format.folders import list_checkpoints
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.format.verify import verify
from megads.config.run_files import ATTEMPTS, COMMAND, COMMAND_ONCE_SAVED, LOG_FILE, METRICS
from megads.config.run_folder import CONFIG, HEARTBEAT, OUTCOME, load_config
from megads.data.datasets import build_splits, read_shards
from megads.data.formats.record import RECORD_SUFFIX, Record, checksums_of, write_record
from megads.data.formats.token_file import open_dataset
from megads.data.samples.index_cache.cache import Cache
from megads.data.token_files.inspect import info
from megads.data.token_files.scan import check
from megads.errors import DataError, MegadsError
from megads.monitor.columns import read_columns
from megads.monitor.metrics import read_metrics
from megads.monitor.rows import forget_reports
from megads.monitor.run_state.attempts import Attempt, append_attempt, read_attempts
from megads.monitor.run_state.follow import Follower
from megads.monitor.run_state.runs import BROKEN, facts_of

OUTCOMES = ("detected", "repaired", "harmless", "SILENT", "TRACEBACK")
FOR_PEOPLE = (COMMAND, COMMAND_ONCE_SAVED, LOG_FILE, "loss.png", "ds_config.json", "job.sh")
"""Files of a run folder from which no command computes anything; `megads watch` shows the last lines of the log."""
FIRST = 4096  # bytes of a file that get half of the flips
NOW = 2e9  # unix seconds; ages do not count


class Lines(logging.Handler):
    """Counts what is said in the log."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.said.append(record.getMessage())


@dataclass(frozen=True)
class Kind:
    """Files that one reader reads; ``read`` returns all that follows from them, or raises a MegadsError."""

    name: str
    files: Callable[[], list[Path]]
    read: Callable[[], Any]


@dataclass
class Table:
    """Kind of file x outcome."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return it as text."""
        head = f"{'file':12}{'flips':>8}" + "".join(f"{name:>11}" for name in OUTCOMES)
        rows = [
            f"{name:12}{sum(found.values()):8}" + "".join(f"{found[each]:11}" for each in OUTCOMES)
            for name, found in self.counts.items()
        ]
        return [head, *rows]


def _checkpoint(path: Path) -> Any:
    verify(path)
    with Reader(path) as reader:
        names, kinds = sorted(reader.manifest.tensors), reader.manifest.kinds
        numbers = {(name, kind): reader.whole(name, kind).tobytes() for name in names for kind in kinds}
        return numbers, reader.manifest.iteration, dict(reader.manifest.progress), dict(reader.manifest.scalars)


def _facts(run_dir: Path) -> Any:
    facts = facts_of(run_dir, NOW)
    if facts.state == BROKEN:
        raise DataError(facts.why)
    return {**asdict(facts), "age_s": 0}


def _rows(run_dir: Path) -> Any:
    path, follower = run_dir / METRICS, Follower(run_dir / METRICS)
    follower.poll()
    columns = {name: (each.x.tolist(), each.y.tolist()) for name, each in read_columns(path, lambda key: True).items()}
    # As text: a nan is not equal to itself.
    return read_metrics(path), _facts(run_dir), repr(columns), repr(follower.curves)


def _tokens(prefix: str) -> Any:
    if problems := check(prefix):
        raise DataError(problems[0])
    data = open_dataset(prefix)
    return info(prefix), [data.get(i).tobytes() for i in range(len(data))]


def _samples(run_dir: Path) -> Any:
    run = load_config(run_dir / CONFIG)
    train = build_splits(run, read_shards(run))["train"]
    return [train[i].tobytes() for i in range(len(train))] if train else []


def kinds_of(run_dir: Path, prefix: str) -> list[Kind]:
    """Return the kinds of files of a run and its data."""
    newest = list_checkpoints(run_dir / "checkpoints")[-1]
    index = Cache.of(load_config(run_dir / CONFIG)).folder

    def one(path: Path) -> Callable[[], list[Path]]:
        return lambda: [path]

    return [
        Kind("tensors", lambda: sorted(newest.glob("*.safetensors")), lambda: _checkpoint(newest)),
        Kind("manifest", one(newest / "manifest.json"), lambda: _checkpoint(newest)),
        Kind("config.yaml", one(run_dir / CONFIG), lambda: (load_config(run_dir / CONFIG), _facts(run_dir))),
        Kind("outcome", one(run_dir / OUTCOME), lambda: _facts(run_dir)),
        Kind("heartbeat", one(run_dir / HEARTBEAT), lambda: _facts(run_dir)),
        Kind("metrics", one(run_dir / METRICS), lambda: _rows(run_dir)),
        Kind("attempts", one(run_dir / ATTEMPTS), lambda: read_attempts(run_dir, NOW)),
        Kind(".bin", one(Path(prefix + ".bin")), lambda: _tokens(prefix)),
        Kind(".idx", one(Path(prefix + ".idx")), lambda: _tokens(prefix)),
        Kind(".info.json", one(Path(prefix + RECORD_SUFFIX)), lambda: _tokens(prefix)),
        Kind("index cache", lambda: sorted(index.glob("*.safetensors")), lambda: _samples(run_dir)),
    ]


def unknown_files(run_dir: Path, kinds: list[Kind]) -> list[Path]:
    """Return the files of a run folder that no kind reads and that are not for people; all checkpoints are alike."""
    known = {run_dir / name for name in FOR_PEOPLE}.union(*(kind.files() for kind in kinds))
    checkpoints = run_dir / "checkpoints"
    found = (path for path in run_dir.rglob("*") if path.is_file() and path.suffix != ".err")  # of Victim
    return sorted(path for path in found if path not in known and path.parent.parent != checkpoints)


def outcome_of(read: Callable[[], Any], expected: Any, lines: Lines) -> str:
    """Return what a flip led to; the log begins empty."""
    try:
        found = read()
    except MegadsError:
        return "detected"
    except Exception as error:  # whatever it is, it is a bug, and the table says so
        return f"TRACEBACK {type(error).__name__}: {error}"
    if found == expected:
        return "repaired" if lines.said else "harmless"
    return "detected" if lines.said else "SILENT"


def flip_all(kinds: list[Kind], count: int, seed: int) -> Table:
    """Flip ``count`` bits, one at a time, and return what each led to."""
    dice, table, lines = random.Random(seed), Table(), Lines()
    log = logging.getLogger("megads")
    log.handlers, log.propagate = [lines], False
    expected: Mapping[str, Any] = {kind.name: kind.read() for kind in kinds}
    for number in range(count):
        kind = kinds[number % len(kinds)]
        path = dice.choice(kind.files())
        content = path.read_bytes()
        bit = dice.randrange(8 * (min(FIRST, len(content)) if dice.random() < 0.5 else len(content)))
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)  # a disk that errs changes no time
        _put(path, bytes(changed), times)
        lines.said = []
        forget_reports()
        found = outcome_of(kind.read, expected[kind.name], lines)
        _put(path, content, times)
        table.counts.setdefault(kind.name, Counter())[found.split()[0]] += 1
        if found.startswith(("SILENT", "TRACEBACK")):
            table.wrong.append(f"{path}: bit {bit}: {found}")
    return table


def _put(path: Path, content: bytes, times: tuple[int, int]) -> None:
    path.write_bytes(content)
    os.utime(path, ns=times)


def make_run(folder: Path) -> tuple[Path, str]:
    """Train a run to its end; return its folder and the prefix of its data."""
    prefix = write_data(folder)
    data = open_dataset(prefix)
    sums = checksums_of(Path(prefix + ".bin"), Path(prefix + ".idx"))
    write_record(
        prefix,
        Record(
            "0" * 64, "NullTokenizer", "", 2000, None, data.num_documents, len(data), data.num_tokens, checksums=sums
        ),
    )
    make_run_folder(folder / "run", prefix, {"checkpoint.save_interval": "7"})
    with Zygote() as zygote:
        Victim(folder / "run", zygote, random.Random(0)).finish()
    started = Attempt(hosts=("a",), num_ranks=1, started=NOW - 60)  # a launch writes both rows, and here is none
    for row in (started, replace(started, ended=NOW, kind="done")):
        append_attempt(folder / "run", row)
    return folder / "run", prefix


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=1000, help="bits")
    parser.add_argument("--seed", type=int, help="of the bits; default: drawn")
    parser.add_argument("--folder", type=Path, help="for the run; removed when all is well")
    asked = parser.parse_args()
    seed = random.randrange(10**6) if asked.seed is None else asked.seed
    folder = Path(tempfile.mkdtemp(prefix="megads-bitflips-", dir=asked.folder))
    started = time.monotonic()
    run_dir, prefix = make_run(folder)
    kinds = kinds_of(run_dir, prefix)
    if unknown := unknown_files(run_dir, kinds):
        sys.exit(f"{unknown[0]}: name the reader of this file, or that it is for people")
    table = flip_all(kinds, asked.count, seed)
    print("\n".join(table.lines()))
    print(f"{asked.count} bits, seed {seed}, {time.monotonic() - started:.0f} s")
    if table.wrong:
        sys.exit("\n".join(["WRONG:", *table.wrong[:20], f"the run is in {folder}"]))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
