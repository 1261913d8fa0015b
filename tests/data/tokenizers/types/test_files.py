"""Files of tokenizers that are broken."""

from __future__ import annotations

import json

import pytest

from megads.data.tokenizers.build import load_tokenizer, vocab_size_of
from megads.errors import ConfigError, DataError
from tests.data.tokenizers.conftest import run_with


def test_broken_tokenizers(folder, tmp_path):
    with pytest.raises(DataError, match=r"the folder has no tokenizer.json"):
        vocab_size_of(run_with(tmp_path))
    path = tmp_path / "tokenizer.json"
    for content, expected in [
        ("{", "is not JSON"),
        ("[]", "expected a JSON object"),
        ('{"model": {}}', "holds no vocabulary"),
        ('{"model": {"vocab": {}}}', "holds no vocabulary"),
    ]:
        path.write_text(content)
        with pytest.raises(DataError, match=expected):
            vocab_size_of(run_with(path))
    path.write_text('{"model": {"type": "Nonsense", "vocab": {"a": 0}}}')
    with pytest.raises(DataError, match="cannot read it") as error:
        load_tokenizer(run_with(path))
    assert "\n" not in str(error.value)
    path.write_text(json.dumps({"version": "1.0", "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}}))
    with pytest.raises(ConfigError, match=r"has none of <\|endoftext\|>, </s>.*set eos_token"):
        _ = load_tokenizer(run_with(path)).eod
