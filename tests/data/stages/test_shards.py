from __future__ import annotations

from pathlib import Path

import pytest

from megads.config.data_stages.table import StageTable
from megads.data.datasets import uses_demo
from megads.data.sources.file_list import Shard
from megads.data.stages.shards import list_of_stage, lists_of, mixed, stages_with_files, trains_on_demo
from megads.errors import DataError
from tests.config.data_stages.files import derived, write_stages
from tests.data.factory import write_list

SHARDS = [Shard(1, "/a", "web"), Shard(3, "/b", "web"), Shard(2, "/c", "code"), Shard(5, "/d", "math")]


def test_a_mixture_gives_each_corpus_its_share() -> None:
    found = mixed(SHARDS, {"web": 3, "code": 1}, "here")
    assert [shard.weight for shard in found] == pytest.approx([0.1875, 0.5625, 0.25, 0])
    assert [shard.prefix for shard in found] == [shard.prefix for shard in SHARDS]


def test_a_corpus_that_is_not_there_is_named() -> None:
    with pytest.raises(DataError, match="here: mixture: no corpus 'wbe' in its data, which has code, math and web"):
        mixed(SHARDS, {"wbe": 1}, "here")
    with pytest.raises(DataError, match="every file of corpus 'x' has a weight of 0"):
        mixed([Shard(0, "/a", "x"), SHARDS[0]], {"x": 1}, "here")


STAGES = """stages:
- {name: a, iters: 1}
- {name: b, iters: 1, mixture: {code: 1}}
- {name: c, iters: 1, data: own.txt}
- {name: d, iters: 1, data: [2 $FOLDER/e web, 1 f]}
"""


def test_files_of_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLDER", "/data")
    write_list(tmp_path / "own.txt", "1 x/g web")
    given = write_list(tmp_path / "run.txt", "1 /a web", "3 /b code")
    run = derived(write_stages(tmp_path, STAGES), DATA_FILE_LIST=str(given))
    found = stages_with_files(run)
    assert [[(shard.weight, shard.prefix) for shard in shards] for _, _, shards in found] == [
        [(1, "/a"), (3, "/b")],
        [(0, "/a"), (1, "/b")],
        [(1, str(tmp_path / "x/g"))],
        [(2, "/data/e"), (1, str(tmp_path / "f"))],
    ]
    assert lists_of(run) == ([tmp_path / "own.txt"], ["2 $FOLDER/e web", "1 f"])
    monkeypatch.delenv("FOLDER")
    table = StageTable.of(run)
    assert table is not None
    with pytest.raises(DataError, match=r"stages.yaml:5: stage d: \$FOLDER/e: FOLDER is not set"):
        list_of_stage(run, table, table.stages[3])


def test_the_demo_corpus_is_for_stages_without_files(tmp_path: Path) -> None:
    run = derived(write_stages(tmp_path, STAGES.replace(", mixture: {code: 1}", "")))
    table = StageTable.of(run)
    assert table is not None
    assert [trains_on_demo(run, stage) for stage in table.stages] == [True, True, False, False]
    assert uses_demo(run)
    assert not uses_demo(derived(write_stages(tmp_path, "stages:\n- {iters: 1, data: [1 a]}\n")))


def test_a_run_without_stages_has_none() -> None:
    assert stages_with_files(derived(Path(""), DATA_STAGES="", TRAIN_ITERS="1")) == []
