"""Rows and their checksums: what every reader does with a damaged one."""

from __future__ import annotations

import json
import random
import zlib

import pytest

from megads.monitor import columns
from megads.monitor.columns import read_columns
from megads.monitor.metrics import MetricsFile, read_metrics
from megads.monitor.rows import Damage, parse_rows
from megads.monitor.run_state.follow import Follower
from megads.monitor.run_state.runs import facts_of
from megads.monitor.run_state.watch import Watch
from tests.data.samples.index_cache.test_damage import SEED
from tests.monitor.plots.made import make_run, rows_of


@pytest.fixture
def warnings(caplog):
    caplog.set_level("INFO", logger="megads")
    return caplog


def write(path, rows):
    file = MetricsFile(path)
    for row in rows:
        file.write(row)
    file.close()
    return path


def spoil(path, line, old=b'"lm_loss": ', new=b'"lm_loss": 1'):
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    path.write_bytes(b"".join(lines))


def steps(rows):
    return [row["iteration"] for row in rows if "lm_loss" in row]


def test_the_checksum_is_the_last_key_and_covers_the_text_before_it(tmp_path):
    row = {"iteration": 1, "lm_loss": 2.5, "name": "\u00e9"}
    line = write(tmp_path / "m", [row]).read_text()
    assert line.startswith(json.dumps(row)[:-1] + ', "crc32": "')
    assert list(json.loads(line)) == [*row, "crc32"]
    assert json.loads(line)["crc32"] == f"{zlib.crc32(line.rpartition(', ')[0].encode()):08x}"
    assert read_metrics(tmp_path / "m") == [row]


def test_every_flipped_bit_of_a_file_is_reported_or_changes_nothing(tmp_path):
    text = write(tmp_path / "m", rows_of(3, every=2)).read_bytes()
    whole = parse_rows(text, Damage())
    assert len(whole) == 4
    dice = random.Random(SEED)
    last = len(text) - 60  # every bit of the last checksum and the end of the line
    for bit in [*range(8 * last, 8 * len(text)), *(dice.randrange(8 * last) for _ in range(500))]:
        changed = bytearray(text)
        changed[bit // 8] ^= 1 << bit % 8
        damage = Damage()
        rows = parse_rows(bytes(changed), damage)
        assert (rows == whole) if not damage.count else all(row in whole for row in rows), bit
        assert damage.count <= 1, bit


def test_every_prefix_of_a_file_that_is_being_written_is_no_damage(tmp_path):
    text = write(tmp_path / "m", rows_of(2)).read_bytes()
    whole = parse_rows(text, Damage())
    for end in range(1, len(text)):
        damage = Damage()
        rows = parse_rows(text[:end], damage)
        assert rows == whole[: len(rows)], end
        assert not damage.count, end


def test_rows_without_checksums_and_of_other_programs_are_read_as_they_are():
    lines = (
        b'{"iteration": 1, "lm_loss": 2}\n{"iteration":2,"crc32":"00000000"}\r\nno row\n\n{"iteration": 3, "a": NaN}\n'
    )
    damage = Damage()
    rows = parse_rows(lines, damage)
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert rows[1] == {"iteration": 2}
    assert not damage.count
    assert parse_rows(b'{"iteration": 1' + b"0" * 400 + b"}\n", damage) == [{"iteration": float("inf")}]


@pytest.mark.parametrize("processes", [1, 3])
def test_columns_skip_damaged_rows_and_say_so_once(tmp_path, monkeypatch, warnings, processes):
    monkeypatch.setattr(columns, "BLOCK", 2000)
    monkeypatch.setattr(columns, "WORTH_SPLITTING", 1)
    path = write(tmp_path / "m", rows_of(60, every=100))
    for line in (7, 33, 60):
        spoil(path, line)
    found = read_columns(path, lambda key: True, processes=processes)
    assert found["lm_loss"].x.tolist() == [step for step in range(1, 61) if step not in (7, 33, 60)]
    assert "crc32" not in found
    assert warnings.messages == [f"{path}: 3 damaged rows skipped (CRC-32 differs), the first on line 7"]


def test_a_resume_drops_damaged_rows_and_says_so(tmp_path, warnings):
    path = write(tmp_path / "m", rows_of(5))
    spoil(path, 2)
    assert steps(read_metrics(path)) == [1, 3, 4, 5]
    MetricsFile(path, 4).close()
    line = f"{path}: 1 damaged row skipped (CRC-32 differs), the first on line 2"
    assert warnings.messages == [line, line]
    assert steps(read_metrics(path)) == [1, 3, 4]
    assert len(warnings.messages) == 2


def test_runs_and_watch_mark_damaged_rows(tmp_path):
    make_run(tmp_path / "r", [])
    path = write(tmp_path / "r/metrics.jsonl", rows_of(9))
    spoil(path, 9)
    spoil(path, 4, b'"crc32": "', b'"crc32": "0')
    why = "metrics.jsonl: 2 damaged rows skipped (CRC-32 differs), the first on line 4"
    facts = facts_of(tmp_path / "r")
    assert facts.why.startswith(why)
    assert facts.step == 8
    watch = Watch(tmp_path / "r")
    watch.poll()
    assert watch.line().split(" | ")[-2:] == [why, watch.state.name]
    assert why in watch.screen(120, 40)


def test_a_follower_skips_a_damaged_row_and_counts_it_once(tmp_path, monkeypatch):
    path = write(tmp_path / "m", rows_of(40, every=100))
    spoil(path, 39)
    monkeypatch.setattr("megads.monitor.run_state.follow.WORTH_SPLITTING", 1)
    monkeypatch.setattr(Follower, "_jump", _small_jump)
    follower = Follower(path)
    follower.poll()
    assert follower.curves["lm_loss"][0].tolist() == [*range(1, 39), 40]
    assert follower.damage.count == 1
    row = path.read_bytes().splitlines(keepends=True)[-1]
    for half in (row[:50], row[50:]):
        with open(path, "ab") as file:
            file.write(half)
        follower.poll()
    assert follower.damage.count == 1


def _small_jump(self, size):
    """As the original, but all lines are read again."""
    read_columns(self.path, lambda key: True, damage=self.damage)
