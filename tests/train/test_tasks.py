"""Tasks on the live engine: numbers of ``megads evaluate`` on the checkpoint, and a training that is the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from megads.errors import DataError
from megads.inference.load import load_model, open_weights
from megads.inference.runner import Runner
from tests.data.factory import write_dataset
from tests.parity.layouts import VOCAB, Layout
from tests.parity.loops import loop_of, state_of
from tests.ranks import run_ranks

SETTINGS = {
    "train.train_iters": "3",
    "train.micro_batch": "4",
    "optim.lr_decay_iters": "3",
    "checkpoint.save_interval": "2",
    "checkpoint.keep": "0",
    "tasks.interval": "2",
    "tasks.stride": "5",
}
CONTEXT = 16


def _numbers(count: int, seed: int) -> str:
    draw = torch.Generator().manual_seed(seed)
    return " ".join(map(str, torch.randint(0, VOCAB - 1, (count,), generator=draw).tolist()))


def _files(folder: Path) -> str:
    """Write texts whose words are tokens, and return EVAL_TASKS."""
    (folder / "wiki.tokens").write_text(_numbers(50, 1))
    texts = [json.dumps({"text": _numbers(count, count)}) for count in (2, 3, 17, 40, 5)]
    (folder / "texts.jsonl").write_text("\n".join(texts) + "\n")
    (folder / "one.txt").write_text(_numbers(33, 2))
    # Of all that may follow 7 one is the most likely: one of these texts is right.
    (folder / "lambada.jsonl").write_text("".join(json.dumps({"text": f"7 {last}"}) + "\n" for last in range(VOCAB)))
    files = {"wikitext103": "wiki.tokens", "lambada": "lambada.jsonl"}
    named = [f"{task}:{folder / name}" for task, name in files.items()]
    return ",".join([*named, *(f"loss:{folder / name}" for name in ("texts.jsonl", "one.txt"))])


def _rows(folder: Path) -> dict[int, dict[str, float]]:
    """Return the tasks' numbers by step."""
    found: dict[int, dict[str, float]] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        numbers = {key: value for key, value in row.items() if key.startswith("task/")}
        if numbers:
            found.setdefault(row["iteration"], {}).update(numbers)
    return found


def _evaluated(folder: Path, step: int, tasks: str) -> dict[str, float]:
    """Return what ``megads evaluate`` computes on the checkpoint of a step."""
    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.config.settings.tasks import parse_tasks
    from megads.data.tokenizers.build import make_tokenizer
    from megads.evaluate.score import score
    from megads.evaluate.tasks import Options, make_task

    weights, groups = open_weights(folder / "checkpoints", step), Groups(Grid(), 0)
    assert weights.context == CONTEXT
    module = load_model(weights, groups, torch.device("cpu"), torch.float32)
    runner = Runner(module, groups, context=CONTEXT, num_slots=1)
    numbers = {}
    for file in parse_tasks(tasks):
        task = make_task(file.task, file.path, make_tokenizer(weights.tokenizer()), Options(CONTEXT, 5))
        found = task.result(score(runner, task.windows, 3))
        numbers |= {f"task/{file.label}/{name}": value for name, value in found.items()}
    weights.close()
    return numbers


def _trains(layout: Layout, folder: Path, changes: dict[str, str]) -> str:
    loop = loop_of(layout, folder, **changes)
    loop.run()
    if loop.reporter is not None:
        loop.reporter.metrics.close()
    return state_of(loop)


def _check_layout(layout: Layout, folder: Path, tasks: str) -> None:
    plain = _trains(layout, folder / "plain", SETTINGS | {"tasks.interval": "0"})
    scored = _trains(layout, folder / "scored", SETTINGS | {"tasks.files": tasks})
    assert scored == plain  # with dropout


DOCUMENTS = {"data.reset_attention_mask": "true", "data.reset_position_ids": "true"}
LAYOUTS = [
    Layout("gpt-dropout", tp=2, more={"parallel.scatter_norms": "true"}),
    Layout("llama", pp=2, sp=2),
    Layout("gpt-dropout", dp=2, zero=3),
    Layout("gpt-dropout", tp=2, pp=2),
    Layout("gqa", dp=2, zero=0, more=DOCUMENTS),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_numbers_are_those_of_the_checkpoint_and_the_training_is_the_same(tmp_path, layout):
    tasks = _files(tmp_path)
    run_ranks(layout.ranks, _check_layout, layout, tmp_path, tasks)
    rows = _rows(tmp_path / "scored")
    assert list(rows) == [2, 3]
    assert {numbers["task/lambada/correct"] for numbers in rows.values()} == {1}
    for step, numbers in rows.items():
        assert numbers == pytest.approx(_evaluated(tmp_path / "scored", step, tasks), rel=1e-6)


def _validates(layout: Layout, folder: Path, prefix: str) -> None:
    held_out = {"data.valid_path": prefix, "train.eval_interval": "3", "train.eval_iters": "2", "tasks.interval": "0"}
    loop = loop_of(layout, folder / "run", **SETTINGS | held_out | {"tasks.files": f"loss:{prefix}"})
    loop.run()
    if loop.reporter is not None:
        loop.reporter.metrics.close()


def test_the_loss_of_token_files_is_the_validation_loss_of_the_same_samples(tmp_path):
    # One document of two global batches of eight samples: the order of documents leaves the samples as they are.
    prefix = write_dataset(tmp_path, [2 * 8 * CONTEXT + 1], seed=5, name="held_out")
    run_ranks(2, _validates, Layout("llama", dp=2), tmp_path, prefix)
    ((step, numbers),) = _rows(tmp_path / "run").items()
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    (valid,) = (row["valid_loss"] for row in map(json.loads, lines) if "valid_loss" in row)
    assert numbers["task/loss/samples"] == 16
    assert numbers["task/loss/loss"] == pytest.approx(valid, rel=1e-6)
    assert numbers == pytest.approx(_evaluated(tmp_path / "run", step, f"loss:{prefix}"), rel=1e-6)


def _gives_up_and_owes(layout: Layout, folder: Path, tasks: str) -> None:
    changes = SETTINGS | {"tasks.files": tasks}
    loop = loop_of(layout, folder, **changes)
    agreed = loop.stop.agreed
    # Asked to stop in the tasks of step 2: between two of them, and after them.
    loop.stop.agreed = lambda *, step=True, **due: (
        "asked to stop" if loop.training.progress.iteration == 2 else agreed(step=step, **due)
    )
    assert loop.run().exit_code == 75
    if loop.reporter is not None:
        loop.reporter.metrics.close()
    assert loop.training.progress.owes_tasks
    again = loop_of(layout, folder, **changes)
    assert again.training.progress.owes_tasks
    again.run()
    if again.reporter is not None:
        again.reporter.metrics.close()
    assert not again.training.progress.owes_tasks


def test_what_a_stop_interrupts_is_scored_on_resume(tmp_path):
    tasks = _files(tmp_path)
    run_ranks(1, _gives_up_and_owes, Layout("llama"), tmp_path / "run", tasks)
    steps = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    keys = [
        (row["iteration"], "task/loss.one/ppl" in row)
        for row in steps
        if "lm_loss" in row or "task/loss.one/ppl" in row
    ]
    assert keys == [(1, False), (2, False), (2, True), (3, False), (3, True)]


def _fails(layout: Layout, folder: Path, tasks: str) -> None:
    with pytest.raises(DataError, match="has nothing before its last word"):
        loop_of(layout, folder, **SETTINGS, **{"tasks.files": tasks})


def test_a_file_that_only_its_tokens_show_to_be_wrong_fails_on_every_rank(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "5"}\n')
    run_ranks(2, _fails, Layout("llama", dp=2), tmp_path / "run", f"lambada:{tmp_path}/a.jsonl")


def test_a_file_that_vanishes_changes_nothing(tmp_path):
    (tmp_path / "a.txt").write_text(_numbers(20, 3))
    run_ranks(1, _vanishes, Layout("llama"), tmp_path)
    assert list(_rows(tmp_path / "run")) == [2, 3]


def _vanishes(layout: Layout, folder: Path) -> None:
    loop = loop_of(layout, folder / "run", **SETTINGS, **{"tasks.files": f"loss:{folder}/a.txt"})
    (folder / "a.txt").unlink()
    loop.run()
    loop.reporter.metrics.close()
