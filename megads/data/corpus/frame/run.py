"""Run a step over its inputs: in one process or with those of other ranks, resumable, and published at once."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from megads.data.corpus.frame.job import CorpusJob, check_job, digest_of
from megads.data.corpus.frame.report import Summary, as_text, summarise
from megads.data.corpus.frame.step import Joined
from megads.data.corpus.frame.worker import serve
from megads.data.preprocess.output import MARKER, PartFiles, Point, part_folder
from megads.data.preprocess.plan import Segment
from megads.data.preprocess.progress import Done
from megads.data.preprocess.rank import RankRun, count_workers, run_rank
from megads.data.preprocess.team import WAIT_S, Team
from megads.storage.durable import sync, write_synced
from megads.storage.reading import read_json

_REPORT = "report.json"


def run_step(
    job: CorpusJob, *, rank: int = 0, size: int = 1, stream: TextIO, patience_s: float = WAIT_S
) -> Summary | None:
    """Run the step of ``job``, together with the processes of the other ranks.

    Must be called before this process has used a library that starts threads: it forks.

    Args:
        job: what to do.
        rank: of this process.
        size: number of processes, all with the same job, on hosts that see the same files.
        stream: for progress and notes.
        patience_s: after which a rank without a sign of life is given up.

    Returns:
        What was made; None on ranks other than 0.

    Raises:
        MegadsError: nothing is then under the final names. What cost more than a moment is kept
            where the same command resumes it.
        Stopped: by a signal; likewise.
        EndedByLeader: another process failed, and the leader reports why.
    """
    check_job(job, size)
    run = _Run(job, Team(rank, size, job.meeting, patience_s), stream, has_tokens=False)
    made: list[Summary] = run_rank(run)
    return made[0] if made else None


def _rename(source: Path, target: Path) -> None:
    """Replace ``target`` at once, also where it is on another disk."""
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        temporary = target.with_name(f".{target.name}.tmp")
        shutil.copyfile(source, temporary)
        sync(temporary)
        temporary.replace(target)
        source.unlink()


class _Run(RankRun[CorpusJob, Summary]):
    """One process of a job."""

    prepares_first = True

    @property
    def begin(self) -> Point:
        """The point of a part in which nothing is done."""
        return Point(num_bytes=(0,) * self.job.step.num_streams)

    @property
    def locked(self) -> Sequence[Path]:
        """What only one run may make at a time."""
        extra = self.job.step.extra_outputs.values()
        return [Path(path) for path in (self.job.output, self.job.dropped, *extra) if path]

    @property
    def outputs(self) -> Sequence[str]:
        """Files that must not exist without ``--overwrite``."""
        return [*map(str, self.locked), *([] if self.job.is_hidden else [self.job.report])]

    def prepare(self, segments: Sequence[Segment], close: Sequence[int]) -> str:
        """Start as many workers as there is work for."""
        for path in self.locked:
            path.parent.mkdir(parents=True, exist_ok=True)
        self.job.step.load()
        for _ in range(count_workers(self.job, segments)):
            self.pool.start(functools.partial(serve, job=self.job, segments=segments), close)
        self.hear_all()
        return digest_of(self.job, self.team.size)

    def first_word(self, files: PartFiles) -> tuple[str, ...]:
        """Return what the workers get before the first block."""
        return files.bins

    def done(self, point: Point) -> Done:
        """Return how far a part at ``point`` is."""
        return Done(point.documents, point.text_bytes, 0, point.used, point.bad)

    def complete(self, total: Point) -> None:
        """Have the step finish, write the report and the marker: nothing can be refused any more."""
        job, folder = self.job, part_folder(self.job, 0)
        scratch = job.work / "finish"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        streams = tuple(folder / f"{number}.bin" for number in range(job.step.num_streams))
        joined = Joined(streams, scratch, dict(total.counts), self.stop_if_asked, self.report, bool(job.dropped))
        finished = job.step.finish(joined)
        summary = summarise(job, total, joined.counts, finished.output.stat().st_size)
        report = scratch / _REPORT
        report.write_bytes(as_text(summary))
        # The output is the last to come: what has it has everything.
        moves = [*zip(finished.extra, job.step.extra_outputs.values(), strict=True)]
        moves += [] if job.is_hidden else [(report, job.report)]
        moves += [(finished.dropped, job.dropped)] if job.dropped else []
        moves.append((finished.output, job.output))
        for path, _ in moves:
            sync(path)
        content = {
            "job": self._identity,
            "moves": [[str(path.relative_to(job.work)), os.path.abspath(target)] for path, target in moves],
            "made": summary.content,
        }
        temporary = job.work / f"{MARKER}.tmp"
        write_synced(temporary, json.dumps(content).encode())
        temporary.replace(job.work / MARKER)
        sync(job.work)

    def publish(self) -> tuple[list[Summary], bool]:
        """Give what is complete its final names, and remove the work folder; can be done again."""
        work = self.job.work
        content = read_json(work / MARKER)
        for name, target in content["moves"]:
            if (work / name).exists():
                _rename(work / name, Path(target))
        for folder in {os.path.dirname(target) for _, target in content["moves"]}:
            sync(Path(folder))
        for path in work.iterdir():
            if path.name != MARKER:
                shutil.rmtree(path, ignore_errors=True)
        # The marker is the last to go: until then everything above can be done again.
        (work / MARKER).unlink()
        work.rmdir()
        return [Summary(content["made"])], content["job"] == self._identity

    @property
    def _identity(self) -> str:
        """What makes a job the same, for any number of ranks."""
        return f"{digest_of(self.job, 0)} {os.path.abspath(self.job.dropped) if self.job.dropped else ''}"
