"""Samples of a run by split, and the ranks that build their indices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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


def test_ranks_of_a_host_count_in_the_order_of_their_ranks():
    def team(rank: int, *hosts: str) -> Any:
        groups: Any = SimpleNamespace(rank=rank)
        return index_team(groups, hosts)

    assert (team(0, "a").rank, team(0, "a").size) == (0, 1)
    found = [team(rank, "a", "b", "a", "b") for rank in range(4)]
    assert [(each.rank, each.size, each.local_rank) for each in found] == [(0, 4, 0), (1, 4, 0), (2, 4, 1), (3, 4, 1)]
