"""What the steps read, and what is refused."""

from __future__ import annotations

import gzip
import json

import pytest

from megads.detoxify.records import ScoredPrompt, read_prompts, read_records, score_of, text_of
from megads.errors import DataError


def _file(path, *lines):
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_records_of_plain_and_compressed_files(tmp_path):
    lines = '{"text": "a\u2028b"}\n\n{"text": "c"}'
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    for name in ("a.jsonl", "a.jsonl.gz"):
        path = tmp_path / name
        assert list(read_records(path)) == [(f"{path}:1", {"text": "a\u2028b"}), (f"{path}:3", {"text": "c"})]


def test_prompts_of_both_forms(tmp_path):
    path = _file(
        tmp_path / "p.jsonl",
        '{"prompt": {"text": "a", "toxicity": 0.25, "profanity": null}, "continuation": {}}',
        '{"prompt": "b"}',
        '{"prompt": {"text": "c", "toxicity": null}}',
        '{"prompt": {"text": "d", "toxicity": 0}}',
    )
    assert read_prompts(path) == [ScoredPrompt("a", 0.25), ScoredPrompt("b"), ScoredPrompt("c"), ScoredPrompt("d", 0.0)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", r"p.jsonl:1: is not JSON"),
        ("[]", r"p.jsonl:1: expected an object"),
        ('{"text": "a"}', r'p.jsonl:1: expected {"prompt": {"text": "..."}} or'),
        ('{"prompt": 5}', r'p.jsonl:1: expected {"prompt"'),
        (
            '{"prompt": {"text": "a", "toxicity": "high"}}',
            r"p.jsonl:1: toxicity is high; expected a number from 0 to 1",
        ),
        ('{"prompt": {"text": "a", "toxicity": 1.5}}', r"p.jsonl:1: toxicity is 1.5; expected"),
        ('{"prompt": {"text": "a", "toxicity": true}}', r"p.jsonl:1: toxicity is True; expected"),
        ('{"prompt": {"text": "a", "toxicity": NaN}}', r"p.jsonl:1: toxicity is nan; expected"),
        ('{"prompt": "a\\ud800"}', r"p.jsonl:1: the prompt is not UTF-8"),
        ("", r"p.jsonl: has no prompt"),
    ],
)
def test_prompts_that_are_wrong(tmp_path, line, words):
    with pytest.raises(DataError, match=words):
        read_prompts(_file(tmp_path / "p.jsonl", line))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=rf"^{tmp_path}/none: no such file"):
        list(read_records(tmp_path / "none"))


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({}, 'f:1: has no "score"; run `megads detoxify annotate`'),
        ({"score": {}}, "f:1: \"score\" has no 'toxicity'"),
        ({"score": 0.5}, "f:1: \"score\" has no 'toxicity'; it has none"),
        ({"score": {"threat": 0.5}}, "it has threat: choose with --attribute"),
        ({"score": {"toxicity": None}}, "f:1: toxicity is None; expected a number"),
        ({"score": {"toxicity": -0.1}}, "f:1: toxicity is -0.1; expected a number"),
    ],
)
def test_scores_that_are_wrong(record, words):
    with pytest.raises(DataError) as caught:
        score_of("f:1", record, "toxicity")
    assert words in str(caught.value)


def test_scores_and_texts():
    assert score_of("f:1", {"score": None}, "toxicity") is None
    assert score_of("f:1", {"score": {"toxicity": 1, "threat": 0.5}}, "toxicity") == 1.0
    assert text_of("f:1", json.loads('{"text": ""}')) == ""
    with pytest.raises(DataError, match='f:1: has no "text"'):
        text_of("f:1", {"text": None})
