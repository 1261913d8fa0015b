"""``megads data from-text``, and who names it."""

from __future__ import annotations

import json

from click.testing import CliRunner

from megads.cli import main


def test_text_files_become_a_corpus_for_the_next_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text("First note.\n")
    (tmp_path / "two.txt").write_text("")
    done = CliRunner().invoke(main, ["data", "from-text", "--input", "one.txt", "two.txt", "--output", "corpus.jsonl"])
    assert done.exit_code == 0
    assert done.stdout == "corpus.jsonl: 1 document, 12 B\n"
    assert done.stderr == "megads: 1 file without text skipped, first two.txt\n"
    assert json.loads((tmp_path / "corpus.jsonl").read_text()) == {"text": "First note.\n", "source": "one.txt"}
    again = CliRunner().invoke(main, ["data", "from-text", "--input", "one.txt", "--output", "corpus.jsonl"])
    assert again.exit_code == 2
    assert "corpus.jsonl: already exists; pass --overwrite" in again.stderr


def test_who_passes_plain_text_to_the_next_commands_is_sent_here(tmp_path):
    (tmp_path / "one.txt").write_text("First note.\n")
    words = ["--input", str(tmp_path / "one.txt"), "--vocab-size", "300", "--output", str(tmp_path / "made")]
    done = CliRunner().invoke(main, ["data", "train-tokenizer", *words])
    assert done.exit_code == 2
    assert "`megads data from-text` makes JSON lines of plain text files" in done.stderr
    assert not (tmp_path / "made").exists()
