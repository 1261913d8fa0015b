"""The task of a run: its files, and what follows from them."""

import pytest

from megads.config.settings.finetune import FinetuneConfig
from megads.data.tasks.task import paths_of, read_task, short_names
from megads.errors import ConfigError
from tests.data.tasks.files import race_object, write_json_rows, write_mnli, write_race


def test_a_task_knows_its_head(tmp_path):
    mnli = write_mnli(tmp_path / "m.tsv", [("a", "b", "neutral")])
    race = write_race(tmp_path / "r", {"1.txt": race_object()})
    rows = write_json_rows(tmp_path / "j.jsonl", [{"text": "a", "label": label} for label in (0, 1, 1)])
    found = [
        read_task(FinetuneConfig(task=n, train_data=p)) for n, p in (("MNLI", mnli), ("RACE", race), ("jsonl", rows))
    ]
    assert [(each.num_outputs, each.choices, each.num_train, each.has_f1) for each in found] == [
        (3, 1, 1, False),
        (1, 4, 2, False),
        (2, 1, 3, True),
    ]


def test_another_example_or_name_has_another_fingerprint(tmp_path):
    def fingerprint(name, *rows):
        path = write_mnli(tmp_path / name, rows)
        read_task.__globals__["_read"].cache_clear()
        return read_task(FinetuneConfig(task="MNLI", train_data=path)).fingerprint()

    first = fingerprint("m.tsv", ("a", "b", "neutral"))
    assert fingerprint("m.tsv", ("a", "b", "neutral")) == first
    others = [
        fingerprint("m.tsv", ("a", "b", "entailment")),
        fingerprint("m.tsv", ("a", "c", "neutral")),
        fingerprint("n.tsv", ("a", "b", "neutral")),
    ]
    assert len({first, *others}) == 4


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "no task is named; pass --task MNLI, QQP, RACE or jsonl"),
        ({"task": "MNLI"}, "TASK=MNLI has no files to train on; pass --train-data FILE, or --epochs 0"),
        ({"task": "MNLI", "epochs": 0}, "TASK=MNLI has no files to score; pass --valid-data FILE or --test-data FILE"),
        ({"task": "MNLI", "epochs": 0, "test_data": "a a"}, "a is named twice; name every file once"),
        ({"task": "jsonl", "train_data": "a", "classes": "x y x"}, "TASK_CLASSES=x y x: x is named twice; .*"),
        ({"task": "jsonl", "train_data": "a", "classes": "x"}, "TASK_CLASSES=x: a task has at least two classes; .*"),
        ({"task": "MNLI", "train_data": "a b a"}, "a is named twice; name every file once"),
        ({"task": "MNLI", "train_data": "'a"}, "'a: no closing quotation; quote a path with blanks"),
    ],
)
def test_a_task_without_files_is_refused(given, why):
    with pytest.raises(ConfigError, match=f"^{why}$"):
        read_task(FinetuneConfig(**given))


def test_files_have_short_names_that_differ():
    assert short_names(["data/MNLI/dev_matched.tsv", "data/MNLI/dev_mismatched.tsv"]) == [
        "dev_matched.tsv",
        "dev_mismatched.tsv",
    ]
    assert short_names(["RACE/dev/middle", "RACE/test/middle/"]) == ["dev/middle", "test/middle"]
    assert paths_of("a 'b c'") == ("a", "b c")


def test_files_to_predict_and_names_of_classes(tmp_path):
    mnli = write_mnli(tmp_path / "m.tsv", [("a", "b", "neutral")])
    task = read_task(FinetuneConfig(task="MNLI", epochs=0, test_data=mnli))
    assert [file.path for file in task.test] == [mnli]
    with pytest.raises(ConfigError, match=r"^TASK_CLASSES=a b: TASK=MNLI has the classes contradiction "):
        read_task(FinetuneConfig(task="MNLI", epochs=0, test_data=mnli, classes="a b"))
    race = write_race(tmp_path / "r", {"1.txt": race_object()})
    with pytest.raises(ConfigError, match=r"^TASK_CLASSES=a b: TASK=RACE has choices, no classes; leave it unset$"):
        read_task(FinetuneConfig(task="RACE", epochs=0, test_data=race, classes="a b"))
