from __future__ import annotations

import re
from pathlib import Path

import pytest

from megads.config.data_stages.read import read_stages
from megads.config.data_stages.table import StageData, StageLength, StageRate
from megads.errors import ConfigError
from tests.config.data_stages.files import write_stages

WHOLE = """\
stages:
  - name: main
    tokens: 1.5B
    seq: 4096
    lr: {warmup: 1%, peak: 3e-4}
  - name: anneal
    iters: 2_000
    planned: 3_000
    data: ../lists/anneal.txt
    mixture: {web: 0.7, code: 3e-1}
    global_batch: 64
    seed: 7
    lr:
      to: 0
      shape: sqrt
      cooldown: 500 steps
  - samples: 12
    data:
      - 0.5 a/b web
      - 1 c/d
    lr: 1e-5
"""


def test_a_file_is_read(tmp_path: Path) -> None:
    main, anneal, last = read_stages(write_stages(tmp_path, WHOLE))
    assert (main.name, main.unit, main.length, main.seq) == ("main", "tokens", 1_500_000_000, 4096)
    assert main.rate == StageRate(3e-4, StageLength(1, "%"))
    assert (anneal.unit, anneal.length, anneal.planned, anneal.batch, anneal.seed) == ("iters", 2000, 3000, 64, 7)
    assert anneal.data == StageData(str(tmp_path / "../lists/anneal.txt"), (), (("web", 0.7), ("code", 0.3)))
    assert anneal.rate == StageRate(to=0.0, shape="sqrt", cooldown=StageLength(500, "iters"))
    assert (last.name, last.line, last.data.lines) == ("stage3", 17, ("0.5 a/b web", "1 c/d"))
    assert last.rate == StageRate(peak=1e-5)


WRONG = {
    "": "1: expected 'stages:' and a list",
    "stages: []": "1: expected 'stages:' and a list",
    "stages: 3": "1: expected 'stages:'",
    "stage:\n- iters: 1": "1: no key 'stage' here; did you mean stages?",
    "stages:\n- 7": "2: expected name, tokens, samples",
    "stages:\n- name: a": "2: stage a has no length; give it one of tokens, samples, iters",
    "stages:\n- name: a\n  iters: 3\n  tokens: 4": "2: stage a has tokens and iters; give it one",
    "stages:\n- iters: 1\n  sqe: 8": "3: no key 'sqe' here; did you mean seq?",
    "stages:\n- iters: 1\n  iters: 2": "3: iters is given twice",
    "stages:\n- iters: 0": "2: iters: 0 is less than 1",
    "stages:\n- iters: many": "2: iters: 'many' is not an int",
    "stages:\n- iters: 5\n  planned: 4": "3: planned: 4 is less than iters 5",
    "stages:\n- iters: 1\n  name: a b": "2: name 'a b' must be up to 40 letters",
    "stages:\n- {iters: 1, name: a}\n- {iters: 1, name: a}": "3: stage a: a second stage named a",
    "stages:\n- iters: 1\n  data: [a": "is not YAML",
    "stages:\n- iters: 1\n  data: {a: 1}": "3: data: expected a data list",
    "stages:\n- iters: 1\n  mixture: [a]": "3: mixture: expected CORPUS: SHARE",
    "stages:\n- iters: 1\n  mixture: {a: 0}": "3: mixture: all shares are 0",
    "stages:\n- iters: 1\n  mixture: {a: -1}": "3: mixture: a: -1",
    "stages:\n- iters: 1\n  lr: fast": "3: lr: 'fast' is not constant, a rate, or {peak, warmup",
    "stages:\n- iters: 1\n  lr: {warmup: 7}": "3: warmup: '7' is not a length with its unit; write '2000 iters'",
    "stages:\n- iters: 1\n  lr: {warmup: 101%}": "3: warmup: 101% is more than the stage",
    "stages:\n- iters: 1\n  lr: {warmup: 1.5 iters}": "3: warmup: '1.5' is not an int",
    "stages:\n- iters: 1\n  lr: {shape: linear}": "3: shape has no effect without 'to'",
    "stages:\n- iters: 1\n  lr: {to: 0, shape: cosinus}": "3: shape: no decay is called 'cosinus'; did you mean cos",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_line_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(WRONG[text])) as found:
        read_stages(write_stages(tmp_path, text))
    assert "\n" not in str(found.value)
    assert "stages.yaml:" in str(found.value)


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match=f"DATA_STAGES={path}: .*; pass a YAML file of stages"):
            read_stages(path)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"bytes.yaml: byte 0 is not UTF-8"):
        read_stages(tmp_path / "bytes.yaml")
