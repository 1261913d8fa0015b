from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from megads.data import check
from megads.data.check import _disk, check_data
from megads.data.datasets import build_splits, read_shards
from megads.data.formats.record import Record, write_record
from megads.data.samples.index_cache.cache import Cache
from megads.errors import ConfigError, DataError
from tests.data.factory import make_run, write_dataset, write_list


def _run(path: Path, **sections: dict[str, object]):
    return make_run(**{**sections, "data": {"file_list": str(path), **sections.get("data", {})}})


@pytest.fixture
def data_list(tmp_path) -> Path:
    write_dataset(tmp_path, [50] * 10)
    return write_list(tmp_path / "list.txt", "1 data.bin c")


def test_sound_data_passes(data_list):
    check_data(_run(data_list), 100)
    check_data(_run(data_list, data={"test_split": 0}), 60)


def test_data_of_another_tokenizer_is_refused(data_list):
    record = Record("f" * 12, "HFTokenizer", "theirs.json", 100, None, 10, 10, 500)
    write_record(data_list.parent / "data", record)
    other = write_dataset(data_list.parent, [50] * 4, name="held")
    write_record(other, replace(record, tokenizer="e" * 12, tokenizer_name="other.json"))
    held = write_list(data_list.parent / "held.txt", "1 held")
    check_data(_run(data_list), 100)
    with pytest.raises(
        DataError, match=r"data was made with HFTokenizer theirs.json \(f{12}\) and .*held with .* FORCE=1"
    ):
        check_data(_run(data_list, data={"valid_file_list": str(held)}), 100)
    check_data(_run(data_list, data={"valid_file_list": str(held)}, train={"force": True}), 100)


def test_demo_corpus_not_made_yet_is_fine(tmp_path):
    check_data(make_run(data={"cache_dir": str(tmp_path)}), 100)


def test_broken_demo_corpus_is_told(tmp_path):
    from megads.data.sources.demo import demo_prefix

    run = make_run(data={"cache_dir": str(tmp_path)})
    demo_prefix(run).parent.mkdir()
    with pytest.raises(DataError, match="missing or incomplete"):
        check_data(run, 100)


def test_tokenizer_larger_than_the_model(data_list):
    with pytest.raises(ConfigError, match=r"the tokenizer has 101 tokens, but VOCAB_SIZE=100; set VOCAB_SIZE to 101"):
        check_data(_run(data_list), 101)


@pytest.mark.parametrize("place", [0, 5, 9])
def test_data_of_another_tokenizer(tmp_path, place):
    write_dataset(tmp_path, [10 + 300 * (i == place) for i in range(10)], 32000, None, start=90)
    path = write_list(tmp_path / "list.txt", "1 data c")
    with pytest.raises(DataError, match=r"data: holds token \d+ but the model knows 100; use the tokenizer"):
        check_data(_run(path), 100)


def test_list_and_files(tmp_path, data_list):
    with pytest.raises(DataError, match=r"none.txt: no such file"):
        check_data(_run(tmp_path / "none.txt"), 100)
    with pytest.raises(DataError, match=r"gone.idx: no such file"):
        check_data(_run(write_list(tmp_path / "l", "1 data c", "1 gone c")), 100)
    (tmp_path / "data.bin").write_bytes(bytes(999))
    with pytest.raises(DataError, match=r"data.bin: has 999 bytes, expected 1000 from data.idx"):
        check_data(_run(data_list), 100)


def test_splits(tmp_path, data_list):
    with pytest.raises(DataError, match="valid: 4 samples are needed"):
        check_data(_run(data_list, data={"val_split": 0.01}), 100)
    with pytest.raises(DataError, match=r"train: 400 tokens are less than one sample of SEQ \+ 1 = 513"):
        check_data(_run(data_list, model={"seq_length": 512}), 100)


def test_everything_the_launcher_needs_is_free_of_torch():
    program = (
        "import sys; import megads.data.check, megads.data.tokenizers.build; "
        "import megads.data.sources.demo, megads.data.datasets; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'tokenizers', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_order_that_does_not_fit_on_the_disk(tmp_path, data_list):
    endless = {"train_iters": 10**15}
    told = r"train: the order of 4000000000000000 samples takes .* GiB in .*index, .* lower TRAIN_ITERS or GLOBAL_BATCH"
    with pytest.raises(DataError, match=told):
        check_data(_run(data_list, train=endless), 100)
    with pytest.raises(DataError, match=told):
        check_data(make_run(train=endless, data={"cache_dir": str(tmp_path / "no demo")}), 100)
    with pytest.raises(DataError, match=r"valid: the order of .* lower EVAL_ITERS"):
        check_data(_run(data_list, train={"eval_iters": 10**15}), 100)
    check_data(_run(data_list, train={**endless, "force": True}), 100)


def test_full_disk_that_holds_the_indices_already_is_fine(tmp_path, data_list, monkeypatch):
    run = _run(data_list, data={"cache_dir": str(tmp_path / "cache")})
    build_splits(run, read_shards(run))
    monkeypatch.setattr(check, "_disk", lambda cache: (cache.folder, 1))
    check_data(run, 100)
    with pytest.raises(DataError, match=r"train: the order of 24 samples takes .* which has 9.31e-10 GiB free"):
        check_data(_run(data_list, data={"cache_dir": run.data.cache_dir}, train={"train_iters": 6}), 100)


@pytest.mark.parametrize("recorded", [True, False])
def test_files_of_sentences_are_refused(tmp_path, recorded):
    name = "any" if recorded else "corpus_text_sentence"
    prefix = write_dataset(tmp_path, [20] * 40, 100, name=name)
    if recorded:
        write_record(prefix, Record("", "NullTokenizer", "", 100, None, 40, 40, 800, level="sentence"))
    path = write_list(tmp_path / "list", f"1 {prefix}")
    with pytest.raises(DataError, match=rf"{name}: holds sentences .* separate samples: .* or set FORCE=1"):
        check_data(_run(path), 100)
    check_data(_run(path, train={"force": True}), 100)


def test_a_cache_where_no_files_are_kept_is_called_that(tmp_path):
    with pytest.raises(DataError, match="/proc is on a temporary file system; set DATA_CACHE_PATH to a disk"):
        _disk(Cache(type(tmp_path)("/proc/x")))
    assert _disk(Cache(tmp_path / "x"))[1] > 0
