"""Killed at random moments, a run loses no more than it may, and ends as if it had not been; many more: benchmarks."""

from __future__ import annotations

import random

import pytest

from benchmarks.kills import Campaign, Case
from benchmarks.victims import Wrong, Zygote
from megads.checkpoint.format.folders import list_checkpoints


@pytest.fixture(scope="module")
def zygote():
    with Zygote() as started:
        yield started


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize(
    "case",
    [Case(0, background=False, interval=1, keep=1), Case(1, background=True, interval=2, keep=2)],
    ids=["blocking", "background"],
)
def test_nothing_is_lost_by_kills(tmp_path, zygote, case):
    work = Campaign(tmp_path, zygote, random.Random(3 + case.layout))
    kills = 0
    while kills < 6:  # a run that ends by itself is not enough
        work.run(case, 6 - kills)
        kills = work.tally.kills
    assert work.tally.kills == 6
    assert max(work.tally.lost) <= case.most_lost
    assert work.tally.finished >= 1


def test_what_is_looked_for_is_found(tmp_path, zygote):
    """Damage done by hand: the harness says so, instead of seeing what it wants to see."""
    work = Campaign(tmp_path, zygote, random.Random(0))
    case = Case(2, background=True, interval=2, keep=0)
    whole, run = work.whole(2), work.make("run", case.overrides())
    run.finish()
    work.compare(run, whole, case)
    assert run.look(case.most_lost) == 0
    with pytest.raises(Wrong, match="not from iter_0000002"):
        run.check_resumed(run.checkpoints / "iter_0000002", 0)

    found = list_checkpoints(run.checkpoints)
    left = [run.checkpoints / f"iter_00000{i}.tmp" for i in range(20, 24)]
    for path in left:
        path.mkdir()
    with pytest.raises(Wrong, match="4 unfinished saves"):
        run.look(case.most_lost)
    with pytest.raises(Wrong, match="holds"):
        work.compare(run, whole, case)
    for path in left:
        path.rmdir()

    for path in found[-3:]:
        path.rename(tmp_path / path.name)
    with pytest.raises(Wrong, match="6 steps are lost, from 8 to 14"):
        run.look(case.most_lost)
    for path in found[-3:]:
        (tmp_path / path.name).rename(path)

    file = next(found[2].glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-5] ^= 4
    file.write_bytes(content)
    with pytest.raises(Exception, match="changed since it was written"):
        run.look(case.most_lost)
