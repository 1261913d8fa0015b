from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megads.data.samples.index_cache.build import Team
from megads.data.stages.samples import StageSamples, build_stages
from megads.errors import DataError
from tests.config.data_stages.files import derived, write_stages
from tests.data.factory import write_dataset, write_list

STAGES = """stages:
- {name: short, iters: 3, seq: 8}
- {name: long, iters: 2, seq: 24, mixture: {b: 1}}
- {name: large, iters: 2, seq: 8, global_batch: 3, mixture: {a: 1, b: 1}}
"""
ENV = {"SEQ": "0", "TOKENIZER_TYPE": "NullTokenizer", "VOCAB_SIZE": "2048", "VAL_SPLIT": "200", "EVAL_ITERS": "1"}


def _build(folder: Path, text: str = STAGES, vocab_size: int = 2048) -> tuple[dict[str, Any], str]:
    """Return samples of files whose tokens are below 1000 (corpus a) and from there on (b)."""
    first = write_dataset(folder, [40] * 20, 1000, None, "first")
    second = write_dataset(folder, [40] * 20, 2000, None, "second", start=1000)
    given = write_list(folder / "list.txt", f"1 {first} a", f"1 {second} b")
    cache = {"DATA_CACHE_PATH": str(folder / "cache"), "DATA_FILE_LIST": str(given)}
    run = derived(write_stages(folder, text), **{**ENV, **cache})
    model = run.model.model_copy(update={"vocab_size": vocab_size})
    return build_stages(run.model_copy(update={"model": model}), Team())


def test_stages_follow_each_other(tmp_path: Path) -> None:
    splits, _ = _build(tmp_path)
    train = splits["train"]
    assert isinstance(train, StageSamples)
    rows = [train[i] for i in range(len(train))]
    assert [len(row) for row in rows] == [9] * 6 + [25] * 4 + [9] * 6
    assert train.width == 25
    assert [train.corpus_of(i) for i in range(6, 10)] == ["b"] * 4
    assert all(row.min() >= 1000 for row in rows[6:10])
    assert {train.corpus_of(i) for i in range(6)} == {"a", "b"}
    assert train.corpora == ["a", "b"]
    assert not all(np.array_equal(*pair) for pair in zip(rows[:6], rows[10:], strict=True))  # another seed
    with pytest.raises(IndexError, match="sample 16 of 16"):
        train[16]


def test_held_out_samples_are_those_of_the_first_stage(tmp_path: Path) -> None:
    splits, _ = _build(tmp_path)
    assert len(splits["valid"]) == 2
    assert len(splits["valid"][0]) == 9
    assert splits["test"] is None


def test_a_stage_is_a_function_of_itself(tmp_path: Path) -> None:
    splits, before = _build(tmp_path)
    more, after = _build(tmp_path, STAGES + "- {name: more, iters: 5, data: list.txt}\n")
    for i in range(len(splits["train"])):
        assert np.array_equal(splits["train"][i], more["train"][i])
    assert after.split()[:3] == before.split()


def test_a_stage_of_the_same_data_reads_on(tmp_path: Path) -> None:
    text = "stages:\n- {name: a, iters: 20, seq: 8}\n- {name: b, iters: 30}\n- {name: c, iters: 5, mixture: {a: 1}}\n"
    parts, _ = _build(tmp_path, text)
    whole, _ = _build(tmp_path, "stages:\n- {iters: 50, seq: 8}\n")
    assert [parts["train"][i].tolist() for i in range(100)] == [whole["train"][i].tolist() for i in range(100)]
    stages = parts["train"].stages
    assert [(each.offset, each.planned) for each in stages] == [(0, 100), (40, 100), (0, 10)]
    once = {tuple(parts["train"][i]) for i in range(100)}
    assert len(once) == 100  # no sample twice: less than an epoch


def test_a_plan_keeps_the_order(tmp_path: Path) -> None:
    text = "stages:\n- {iters: 3, planned: 9, seq: 8}\n"
    short, _ = _build(tmp_path, text)
    long, _ = _build(tmp_path, text.replace("iters: 3", "iters: 9"))
    plain, _ = _build(tmp_path, text.replace("planned: 9, ", ""))
    rows = [[list(each["train"][i]) for i in range(6)] for each in (short, long, plain)]
    assert rows[0] == rows[1] != rows[2]


def test_the_stage_of_an_error_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="stage long: "):
        _build(tmp_path, STAGES.replace("seq: 24, mixture: {b: 1}", "seq: 24, data: [1 none a, 1 none b]"))
    train = _build(tmp_path, vocab_size=1500)[0]["train"]
    with pytest.raises(DataError, match=r"stage long: .*the model knows 1500 tokens"):
        list(map(train.__getitem__, range(6, 10)))
