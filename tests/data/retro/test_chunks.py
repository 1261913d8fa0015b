"""Documents to chunks."""

import numpy as np
import pytest

from megads.data.formats.token_file import open_dataset
from megads.data.formats.writer import IndexedWriter
from megads.data.retro.chunks import WORDS, Cutter, bert_lengths
from megads.data.tokenizers.base import TokenizerSpec
from megads.errors import DataError

END, BLANK = 9, 0


def _file(tmp_path, *documents):
    with IndexedWriter(str(tmp_path / "t"), np.uint16) as writer:
        for document in documents:
            writer.add_document(np.array(document))
        writer.finalize()
    return open_dataset(tmp_path / "t")


def _cutter():
    return Cutter(3, END, lambda ids: " ".join(str(i) if i != BLANK else "" for i in ids), lambda t: len(t.split()))


def test_ends_of_documents_and_empty_chunks(tmp_path):
    file = _file(tmp_path, [1, 2, 3, 4, END], [1, 2, 3], [END], [BLANK] * 3 + [5, END], [9, 1, 2, END, END])
    ticks = []
    found = _cutter().cut(file, 0, 5, ticks.append)
    assert found["chunks_valid"].tolist() == [
        *([0, 0, 3, 3], [0, 3, 4, 1], [1, 0, 3, 3], [3, 3, 4, 1]),
        # Only the last end of a document is none of its tokens.
        *([4, 0, 3, 3], [4, 3, 4, 1]),
    ]
    assert found["chunks_invalid"].tolist() == [[3, 0, 3, 0]]
    assert found["doc_offsets"].tolist() == [[0, 2], [1, 3], [2, 3], [3, 4], [4, 6]]
    assert [found[name].dtype for name in ("chunks_valid", "chunks_invalid", "doc_offsets")] == ["u4", "u4", "u8"]
    assert sum(ticks) == 5


def test_a_part_of_the_documents(tmp_path):
    file = _file(tmp_path, [1, 2, 3, 4], [5], [6, 7])
    found = _cutter().cut(file, 1, 3)
    assert found["chunks_valid"].tolist() == [[1, 0, 1, 1], [2, 0, 2, 2]]
    assert found["doc_offsets"].tolist() == [[1, 1], [2, 2]]
    assert found["chunks_invalid"].shape == (0,)


def test_lengths_for_bert(tmp_path):
    assert bert_lengths(TokenizerSpec(WORDS))(" ein  Baum\n") == 2
    (tmp_path / "v.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n")
    length = bert_lengths(TokenizerSpec("BertWordPieceLowerCase", vocab_file=str(tmp_path / "v.txt")))
    assert [length(text) for text in ("", " \n", "A", "abb", "a b")] == [0, 0, 1, 3, 2]
    with pytest.raises(DataError):
        bert_lengths(TokenizerSpec("BertWordPieceCase", vocab_file=str(tmp_path / "none.txt")))
