"""Samples of a run by split, and the ranks that build their indices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from megads.data.samples.index_cache.build import Team
from megads.train.splits import index_team, task_splits
from tests.data.tasks.files import write_json_rows
from tests.parity.layouts import Layout


def test_splits_of_a_task_are_its_files(tmp_path):
    rows = [{"text": str(number), "label": number % 2} for number in range(9)]
    train, valid = (write_json_rows(tmp_path / f"{name}.jsonl", rows[:n]) for name, n in (("t", 9), ("v", 4)))
    blind = write_json_rows(tmp_path / "b.jsonl", [{"text": "5"}])
    run = Layout("llama").run(
        **{
            "finetune.task": "jsonl",
            "finetune.train_data": train,
            "finetune.valid_data": valid,
            "finetune.test_data": blind,
            "data.tokenizer_type": "NullTokenizer",
            "model.num_classes": "2",
        }
    )
    splits, fingerprint = task_splits(run)
    assert len(splits["train"].examples) == 9
    assert [len(samples.file.examples) for samples in splits["valid"]] == [4]
    assert [(samples.file.path, samples.file.has_labels) for samples in splits["test"]] == [(blind, False)]
    write_json_rows(tmp_path / "v.jsonl", rows[:3])
    _forget()
    assert task_splits(run)[1] != fingerprint  # a resumed run says that its data changed


def _forget() -> None:
    from megads.data.tasks import task

    task._read.cache_clear()


def test_one_rank_of_each_host_builds_what_its_own_file_system_lacks():
    def team(rank: int, size: int, *, is_first: bool = True) -> Any:
        groups: Any = SimpleNamespace(rank=rank, grid=SimpleNamespace(world_size=size), is_first_on_host=is_first)
        return index_team(groups)

    assert team(0, 1) == Team()
    found = [team(rank, 4, is_first=rank < 2) for rank in range(4)]
    assert [(each.rank, each.size, each.local_rank) for each in found] == [(0, 4, 0), (1, 4, 0), (2, 4, 1), (3, 4, 1)]
