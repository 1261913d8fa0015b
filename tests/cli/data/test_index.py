"""``megads data index`` in this process; tests/e2e/test_data_index.py trains with what it built."""

from __future__ import annotations

from click.testing import CliRunner

from megads.cli import main
from tests.data.factory import write_dataset

SETTINGS = {
    **{"MACHINE": "cpu", "MEGADS_DEVICE": "cpu", "NGPU_PER_HOST": "1", "SEQ": "16", "TRAIN_ITERS": "3"},
    **{"GLOBAL_BATCH": "8", "MICRO_BATCH": "4", "EVAL_ITERS": "0", "TOKENIZER_TYPE": "NullTokenizer"},
    **{"VOCAB_SIZE": "200", "DATA_PATH": "a", "DATA_CACHE_PATH": "cache", "SPLIT": "10,0,0"},
}


def test_each_index_is_a_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path, [40] * 30, 200, 0, "a")

    def call() -> list[str]:
        done = CliRunner().invoke(main, ["data", "index", "--workers", "1"], env=SETTINGS, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout.splitlines()

    *built, total = call()
    assert built[0].startswith(f"1/{len(built)} ")
    assert f"samples of {tmp_path}/a, documents 0..30" in "\n".join(built)
    assert total.startswith(f"{len(built)} ind")
    assert call() == [f"nothing to do: {len(built)} indices are in {tmp_path}/cache/index"]
