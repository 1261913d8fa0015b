from __future__ import annotations

from pathlib import Path

import pytest

from megads.config.data_stages.table import StageTable, parse_table
from megads.config.schema import RunConfig
from megads.errors import ConfigError
from tests.config.data_stages.files import derived, write_stages
from tests.config.data_stages.test_read import WHOLE


def test_a_table_comes_back_from_its_text(tmp_path: Path) -> None:
    text = WHOLE.replace("- samples", "- seq: 32\n    samples")
    table = StageTable.of(derived(write_stages(tmp_path, text), SEQ="0"))
    assert table is not None
    assert parse_table(table.text()) == table
    assert [each.name for each in table.stages] == ["main", "anneal", "stage3"]
    assert (table.longest, table.has_lengths, table.has_rates) == (4096, True, True)


def test_a_run_without_stages_has_none() -> None:
    assert StageTable.of(RunConfig()) is None


@pytest.mark.parametrize("text", ["{", "[]", '{"file": "a"}', '{"file": "a", "stages": [{"name": "a"}]}'])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="set DATA_STAGES to the file"):
        parse_table(text)


def test_where_a_stage_begins_and_ends(tmp_path: Path) -> None:
    text = "stages:\n- {name: a, iters: 3, seq: 8}\n- {name: b, iters: 2, seq: 32, global_batch: 1}\n"
    table = StageTable.of(derived(write_stages(tmp_path, text), SEQ="0"))
    assert table is not None
    assert [(each.first, each.end, each.tokens) for each in table.stages] == [(0, 6, 48), (6, 8, 64)]
    assert [table.at(consumed).name for consumed in (0, 5, 6, 7, 8, 9)] == ["a", "a", "b", "b", "b", "b"]
    assert [table.tokens_until(consumed) for consumed in (0, 5, 6, 8)] == [0, 40, 48, 112]
    assert (table.iters, table.samples, table.tokens, table.iteration_ends()) == (5, 8, 112, [3, 5])
