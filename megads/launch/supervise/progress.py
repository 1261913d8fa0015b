"""Whether starting a run again makes sense, after what its starts so far have reached."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from megads.config.run_files import JOBS
from megads.errors import EXIT_DONE, EXIT_STOPPED, EXIT_WRONG, LaunchError
from megads.monitor.run_state.attempts import Attempt, read_attempts
from megads.storage.reading import SMALL, read_text
from megads.text.plural import plural


def reason_against(past: Sequence[Attempt], max_restarts: int) -> str:
    """Return why another attempt after ``past`` makes no sense, or nothing.

    An attempt makes progress when it gets further than every one before it, since the ranks last had
    to resume from an older checkpoint than before.
    """
    last = past[-1]
    if (last.exit_code == EXIT_WRONG or last.kind == "wrong") and last.cause != "filesystem":
        return "the same would happen again"
    if last.kind == "import":
        return "a package is missing or broken"
    if last.exit_code == 128 + signal.SIGINT:
        return "interrupted"
    if last.cause in ("user", "time"):
        return last.verdict
    if len(past) > max_restarts:
        return f"MAX_RESTARTS={max_restarts} is used up"
    before = past[-2] if len(past) > 1 else None
    if before and last.kind == before.kind == "memory" and last.reached == before.reached:
        return f"out of memory twice after iteration {last.reached}; lower MICRO_BATCH or raise ZERO_STAGE"
    if is_regression(past):
        return f"two attempts in a row did not get beyond iteration {last.reached}"
    return ""


def is_regression(past: Sequence[Attempt]) -> bool:
    """Return whether the last two attempts got no further than those before them."""
    return len(past) > 1 and not _progressed(past) and not _progressed(past[:-1])


def check_chain(run_dir: Path, job: str, began: int, most: int) -> None:
    """Refuse to start the next job of a chain whose last ones saved nothing beyond what was there.

    A job that is done, or was asked to stop, counts as progress. Jobs of an earlier submission of
    the run do not count.

    Args:
        job: the scheduler's id of this job; "": it is not one of a chain.
        began: the iteration from which it would start.
        most: jobs without progress that are accepted; 0: any number.

    Raises:
        LaunchError: ``most`` jobs in a row began where this one would begin.
    """
    if not job or not most:
        return
    of_chain = _submitted(run_dir)
    starts_of: dict[str, list[Attempt]] = {}
    for each in read_attempts(run_dir):
        if each.job and each.job != job and (job not in of_chain or each.job in of_chain):
            starts_of.setdefault(each.job, []).append(each)
    jobs = list(starts_of.items())[-most:]
    if len(jobs) == most and all(_saved_nothing(starts, began) for _, starts in jobs):
        names = ", ".join(name for name, _ in jobs)
        last = jobs[-1][1][-1]
        # What was submitted by hand has no list of its jobs, so that those before count in every case.
        cure = "and submit again, or set CHAIN_FAILURES=0" if job in of_chain else "and set CHAIN_FAILURES=0 once"
        raise LaunchError(
            f"{run_dir}: the last {plural(most, 'job')} ({names}) saved nothing beyond iteration {began}; the last one "
            f"ended because of {last.cause or 'a stop'}: {last.verdict or last.message}; fix that {cure} to "
            "start in any case"
        )


def _saved_nothing(starts: Sequence[Attempt], began: int) -> bool:
    last = starts[-1]
    is_wanted = last.exit_code == EXIT_DONE or (last.exit_code == EXIT_STOPPED and last.cause != "time")
    return not is_wanted and min(each.began for each in starts) >= began


def _submitted(run_dir: Path) -> set[str]:
    """Return the jobs of the submission that this run is in, as `megads train --submit` wrote them."""
    with suppress(OSError, ValueError):
        return set(read_text(run_dir / JOBS, SMALL).split())
    return set()


def _progressed(past: Sequence[Attempt]) -> bool:
    first = max(i for i, each in enumerate(past) if i == 0 or each.began < past[i - 1].began)
    furthest = max([past[first].began, *(each.reached for each in past[first:-1])])
    return past[-1].reached > furthest
