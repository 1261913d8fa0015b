import pickle

import pytest

from megads.storage.tokenizer_files import wrong_kind


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("tokenizer.json", b'{"a": 1}', ""),
        ("vocab.json", b"[]", ""),
        ("tokenizer.json", b"5", "is not a JSON object"),
        ("tokenizer.json", b"{", "is not JSON"),
        ("vocab.txt", "ä\n".encode(), ""),
        ("vocab.txt", b"a\xff", "is not UTF-8 text (byte 1)"),
        ("a.model", b"\n\x0e", ""),
        ("a.model", b"IQ== 0\nIg== 1\n", ""),
        ("a.model", b"PNG", "is no SentencePiece model"),
        ("vocab.txt", pickle.dumps([1]), "is a pickle, which could run any program"),
        ("tokenizer.model", b"PK\x03\x04", "is a pickle, which could run any program"),
    ],
)
def test_a_file_of_another_kind_is_noticed(tmp_path, name, content, problem):
    (tmp_path / name).write_bytes(content)
    found = wrong_kind(tmp_path / name)
    assert found.startswith(problem) if problem else not found
