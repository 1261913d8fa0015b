"""A folder with small files of every step, and the command in this process."""

from __future__ import annotations

import json
import os

import pytest

from megads.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERSPECTIVE_API_KEY", raising=False)
    texts = ["fine", "you idiot", "hate hate", ""]
    lines = [{"text": text, "prompt": "a", "id": place} for place, text in enumerate(texts)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": {"text": "a", "toxicity": 0.9}}\n{"prompt": {"text": "a"}}\n')
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{\n')
    (tmp_path / "key").write_text("secret\n")
    (tmp_path / "model").mkdir()
    return tmp_path


@pytest.fixture
def megads(folder, capsys, monkeypatch):
    """Return what runs `megads detoxify`, and returns exit code, output and errors."""

    def run(line: str):
        monkeypatch.setattr("sys.argv", ["megads", "detoxify", *line.split()])
        code = 0
        try:
            main(["detoxify", *line.split()])
        except SystemExit as stop:
            code = stop.code or 0
        done = capsys.readouterr()
        return code, done.out, done.err

    return run


def one_line(found: tuple[int, str, str], words: str) -> None:
    """Check that a wrong input is one line and the exit code 2."""
    code, _, err = found
    assert code == 2, err
    assert len(err.splitlines()) == 1, err
    assert err.startswith("megads: ")
    assert words in err
    assert not [name for name in os.listdir() if name.endswith(".lock")]
