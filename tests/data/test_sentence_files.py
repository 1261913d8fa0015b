"""Files that are not split into sentences, and documents without samples, are refused in one line."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from megads.data.check import check_data
from megads.data.datasets import Files, make_plans, read_shards
from megads.data.formats.record import Record, write_record
from megads.data.formats.token_file import open_dataset
from megads.data.formats.writer import IndexedWriter
from megads.data.samples.masked.options import MaskedOptions
from megads.data.sentence_files import holds_sample
from megads.data.tokenizers.build import load_tokenizer
from megads.errors import DataError
from tests.data.factory import write_dataset
from tests.data.samples.masked.corpora import masked_run, write_sentence_file, write_vocab

KNOWN = 97  # tokens, those of [BOS] and [EOS] included


def test_files_of_sentences_pass(tmp_path):
    vocab = write_vocab(tmp_path)
    for family, name in [("bert", "a_text_sentence"), ("t5", "unnamed")]:
        check_data(masked_run(family, write_sentence_file(tmp_path, 40, name=name), vocab), KNOWN)


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_whole_documents_are_refused(tmp_path, family):
    vocab, prefix = write_vocab(tmp_path), write_dataset(tmp_path, [30] * 20, 90)
    run = masked_run(family, prefix, vocab)
    told = f"data: holds whole documents, and MODEL_FAMILY={family} is trained on sentences; .*--split-sentences"
    with pytest.raises(DataError, match=told):
        check_data(run, KNOWN)
    forced = masked_run(family, prefix, vocab, train={"force": True})
    if family == "t5":  # a document may be one sentence
        check_data(forced, KNOWN)
    else:
        with pytest.raises(DataError, match=r"train: none of the 16 documents of .*data has 2 or more sentences of"):
            check_data(forced, KNOWN)


def test_a_record_says_the_level_and_the_tokenizer(tmp_path):
    vocab, prefix = write_vocab(tmp_path), write_sentence_file(tmp_path, 20)
    run = masked_run("t5", prefix, vocab, data={"vocab_extra_ids": 20})
    plain = masked_run("bert", prefix, vocab, data={"vocab_extra_ids": 0})
    made = load_tokenizer(plain).fingerprint
    record = Record(made, "BertWordPieceLowerCase", str(vocab), KNOWN, None, 20, 90, 500, level="sentence")
    write_record(prefix, record)
    check_data(run, KNOWN)  # data for T5 is made as for BERT, without <extra_id_N>
    check_data(plain, KNOWN)
    write_record(prefix, replace(record, tokenizer="f" * 12))
    with pytest.raises(DataError, match="was made with BertWordPieceLowerCase"):
        check_data(run, KNOWN)
    write_record(prefix, replace(record, level="document"))
    with pytest.raises(DataError, match="holds whole documents"):
        check_data(run, KNOWN)


def test_splits_are_of_documents(tmp_path):
    prefix = write_sentence_file(tmp_path, 40)
    run = masked_run("bert", prefix, write_vocab(tmp_path), data={"split": "8,1,1"})
    plans = make_plans(run, read_shards(run), Files())
    found = {name: [(each.first, each.last) for each in plan.files()] for name, plan in plans.items() if plan}
    assert found == {"train": [(0, 32)], "valid": [(32, 36)], "test": [(36, 40)]}


def test_one_document_that_gives_a_sample_is_enough(tmp_path):
    options = MaskedOptions.of(masked_run("bert", "x", tmp_path))
    with IndexedWriter(tmp_path / "few_sentence", "u2") as writer:
        lengths = np.array([4, 600, 3, 5, 6], np.int32)
        writer.add_batch(np.arange(lengths.sum()), lengths, np.array([2, 1, 2]))
        writer.finalize()
    file = open_dataset(tmp_path / "few_sentence")
    # The first has a long sentence, the second only one.
    assert [holds_sample(file, range(i, i + 1), options) for i in range(3)] == [False, False, True]
    assert holds_sample(file, range(3), options)
    run = masked_run("bert", str(tmp_path / "few_sentence"), write_vocab(tmp_path))
    with pytest.raises(DataError, match="train: none of the 2 documents"):
        make_plans(run, read_shards(run), Files())


def test_samples_of_an_epoch_are_counted(tmp_path):
    prefix = write_sentence_file(tmp_path, 25)
    run = masked_run("bert", f"{prefix} {prefix}", write_vocab(tmp_path), train={"train_iters": 1})
    plan = make_plans(run, read_shards(run), Files())["train"]
    assert [each.num_samples for each in plan.files()] == [None, None]
    assert plan.blend is not None
    assert plan.blend.weights == (0.5, 0.5)
