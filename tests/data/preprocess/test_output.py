"""Work of an earlier call: what counts of it, and what does not; token files under their final names."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest

from tests.data.factory import numbers
from tests.data.preprocess.conftest import OUT, golden, stopped, texts, write_jsonl


def test_record(megads, tokenizer, values):
    from megads.data.formats.record import read_record
    from megads.data.tokenizers.base import TokenizerSpec
    from megads.data.tokenizers.build import identity

    write_jsonl(megads.folder / "a.jsonl", values)
    megads.made("--input", "a.jsonl", *OUT, "--tokenizer-model", tokenizer, "--append-eod")
    record = read_record(megads.folder / "out_text_document")
    tokens, lengths, documents = golden(tokenizer, values, eod=True)
    assert record is not None
    assert record.tokenizer == identity(TokenizerSpec("HFTokenizer", str(tokenizer)))
    assert (record.documents, record.sequences, record.tokens) == (len(documents) - 1, len(lengths), len(tokens) // 2)
    assert (record.eod, record.level, record.key, record.sources) == (0, "document", "text", ("a.jsonl",))


@pytest.mark.parametrize("impl", ["cached", "lazy"])
def test_old_formats(megads, tokenizer, values, impl):
    from megads.data.formats.token_file import open_dataset

    write_jsonl(megads.folder / "a.jsonl", values)
    megads.made("--input", "a.jsonl", *OUT, "--tokenizer-model", tokenizer, "--dataset-impl", impl)
    tokens, lengths, documents = golden(tokenizer, values, eod=False, impl=impl)
    files = megads.files()
    assert files["out_text_document.bin"] == tokens
    assert files["out_text_document.idx"].startswith(b"TNTIDX\0\0")
    found = open_dataset(megads.folder / "out_text_document")
    assert numbers(found.length_row) == lengths
    assert numbers(found.document_row) == documents


@pytest.mark.parametrize(("size", "dtype"), [(65_499, "<u2"), (65_500, "<i4"), (100_000, "<i4")])
def test_type_of_the_tokens(megads, size, dtype):
    write_jsonl(megads.folder / "a.jsonl", ["1 2 3", "65000 4"])
    words = ["--tokenizer-type", "NullTokenizer", "--vocab-size", size - 1]
    megads.made("--input", "a.jsonl", *OUT, *words)
    assert megads.files()["out_text_document.bin"] == np.array([1, 2, 3, 65000, 4], dtype).tobytes()


def test_stopped_between_the_names(megads, tokenizer, words):
    """From the moment when everything is whole, the next call only gives the names."""
    megads.made(*words)
    files = megads.files()
    made = {path.name: path.read_bytes() for path in megads.folder.iterdir() if path.is_file()}
    from megads.data.preprocess.input.files import look_at
    from megads.data.preprocess.plan import Job, digest_of
    from megads.data.tokenizers.base import TokenizerSpec

    source = look_at(str(megads.folder / "a.jsonl"))
    job = Job((source,), "out", TokenizerSpec("HFTokenizer", str(tokenizer)), append_eod=True)
    size = len(files["out_text_document.bin"])
    info = {"prefix": "out_text_document", "documents": 1500, "sequences": 1, "tokens": size // 2, "dtype": "uint16"}
    for given in ((), (".bin",), (".bin", ".info.json"), (".bin", ".info.json", ".idx")):
        part = megads.folder / ".out_text_document.preprocess" / "part-0"
        part.mkdir(parents=True)
        (part.parent / "publish").write_text(
            json.dumps({"job": digest_of(job, repr(job.tokenizer), 0), "made": [info]})
        )
        for suffix in (".bin", ".info.json", ".idx"):
            target = megads.folder / f"out_text_document{suffix}"
            target.unlink(missing_ok=True)
            (target if suffix in given else part / f"0{suffix}").write_bytes(made[target.name])
        done = megads.made(*words)
        assert "an earlier call had finished but for renaming the files; they are renamed now" in done.err
        assert megads.files() == files
        assert megads.hidden() == []
    shutil.rmtree(megads.folder)


@pytest.mark.parametrize("change", ["input", "option", "tokenizer", "journal", "tokens"])
def test_work_of_another_command_is_thrown_away(megads, tokenizer, words, change):
    stopped(megads, *words)
    part = megads.folder / ".out_text_document.preprocess" / "part-0"
    changed = [*words, "--verify"]
    values = texts(1500)
    if change == "input":
        values = values[:100]
        write_jsonl(megads.folder / "a.jsonl", values)
    elif change == "option":
        changed.remove("--append-eod")
    elif change == "tokenizer":
        copy = megads.folder / "tokenizer.json"
        copy.write_text(
            tokenizer.read_text().replace('"type":"BPE"', '"type":"BPE","dropout":0.0').replace("\n", "\n ")
        )
        changed = [copy if word == tokenizer else word for word in changed]
        changed += ["--vocab-extra-ids", 3]
    elif change == "journal":
        (part / "journal").write_bytes(b"{}\n")
    else:
        os.truncate(part / "0.bin", 1)
    done = megads.made(*changed)
    assert "discarding " in done.err
    assert "resuming after" not in done.err
    eod = change != "option"
    assert megads.files()["out_text_document.bin"] == golden(tokenizer, values, eod=eod)[0]


def test_journal_cut_in_a_line(megads, tokenizer, words):
    """What a power cut leaves: the last point that is whole counts."""
    stopped(megads, *words)
    journal = megads.folder / ".out_text_document.preprocess" / "part-0" / "journal"
    journal.write_bytes(journal.read_bytes() + b'{"position": {"segm')
    done = megads.made(*words, "--verify")
    assert "resuming after" in done.err
    assert megads.files()["out_text_document.bin"] == golden(tokenizer, texts(1500), eod=True)[0]
