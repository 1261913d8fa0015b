import numpy as np

from megads.data.samples.masked.rows import BertRow, T5Row, bert_row, t5_row


def test_a_row_of_bert_holds_what_the_sample_does():
    parts = BertRow(5)
    sample = {
        "text": np.array([1, 3, 2, 0, 0]),
        "types": np.array([0, 0, 1, 0, 0]),
        "labels": np.array([-1, 7, -1, -1, -1]),
        "padding_mask": np.array([1, 1, 1, 0, 0]),
        "is_random": 1,
    }
    row = bert_row(sample)
    assert row.dtype == np.int64
    assert row.tolist() == [1, 3, 2, 0, 0, 0, 0, 1, 0, 0, -1, 7, -1, -1, -1, 3, 1]
    assert len(row) == parts.width == 3 * 5 + 2
    for name in ("text", "types", "labels"):
        assert row[getattr(parts, name)].tolist() == sample[name].tolist()
    assert (row[parts.length], row[parts.is_random]) == (3, 1)


def test_a_row_of_t5_holds_what_the_sample_does():
    parts = T5Row(4, 3)
    sample = {
        "text_enc": np.array([5, 9, 6, 0]),
        "text_dec": np.array([1, 9, 0]),
        "labels": np.array([9, 2, -1]),
        "length_enc": 3,
        "length_dec": 2,
    }
    row = t5_row(sample)
    assert row.tolist() == [5, 9, 6, 0, 1, 9, 0, 9, 2, -1, 3, 2]
    assert len(row) == parts.width == 4 + 2 * 3 + 2
    for name in ("text_enc", "text_dec", "labels"):
        assert row[getattr(parts, name)].tolist() == sample[name].tolist()
    assert (row[parts.length_enc], row[parts.length_dec]) == (3, 2)
