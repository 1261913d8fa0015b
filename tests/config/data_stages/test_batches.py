from __future__ import annotations

from pathlib import Path

from megads.config.data_stages.batches import StageBatches, stage_batches
from megads.config.schedule.batches import BatchSchedule, Phase
from tests.config.data_stages.files import derived, write_stages


def test_each_stage_has_its_batch(tmp_path: Path) -> None:
    text = "stages:\n- {iters: 3}\n- {iters: 2, global_batch: 5}\n- {iters: 2, global_batch: 1}\n"
    sizes = BatchSchedule.of(derived(write_stages(tmp_path, text)))
    assert isinstance(sizes, StageBatches)
    consumed, found = 0, []
    for _ in range(8):
        found.append((consumed, sizes.batch_at(consumed)))
        consumed = sizes.after(consumed, 1)
    assert found == [(0, 2), (2, 2), (4, 2), (6, 5), (11, 5), (16, 1), (17, 1), (18, 1)]
    assert [sizes.samples_after(steps) for steps in range(8)] == [each for each, _ in found]
    assert [sizes.iterations_within(each) for each, _ in found] == list(range(8))
    assert list(sizes.phases(8)) == [Phase(5, 2, 8), Phase(1, None, 18)]
    assert list(sizes.phases(11)) == [Phase(5, 1, 11), Phase(1, None, 16)]


def test_equal_batches_need_no_phases(tmp_path: Path) -> None:
    run = derived(write_stages(tmp_path, "stages:\n- {iters: 3}\n- {iters: 2, global_batch: 2}\n"))
    assert stage_batches(run) is None
    assert BatchSchedule.of(run) == BatchSchedule(2)
