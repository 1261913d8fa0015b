"""``megads retro build`` and its steps: options, results and what is refused."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from megads.cli import main
from tests.retro.corpus import make_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


def words(corpus, folder, **more):
    """Return the words of a call that builds a project of the corpus, with Megatron's names of options."""
    given = {
        "retro-project-dir": folder,
        "retro-gpt-data-path": f"0.3 {corpus.folder / 'a'} 0.7 {corpus.folder / 'b'}",
        "retro-gpt-tokenizer-type": "GPT2BPETokenizer",
        "retro-gpt-vocab-file": corpus.folder / "vocab.json",
        "retro-gpt-merge-file": corpus.folder / "merges.txt",
        "retro-bert-vocab-file": corpus.folder / "vocab.txt",
        "retro-bert-tokenizer-type": "BertWordPieceLowerCase",
        "retro-gpt-seq-length": 64,
        "retro-gpt-train-samples": 20,
        "retro-gpt-global-batch-size": 2,
        "retro-gpt-eval-iters": 2,
        "retro-gpt-eval-interval": 10,
        "retro-gpt-split": "70,20,10",
        "retro-gpt-chunk-length": 16,
        "retro-block-size": 13,
        "workers": 1,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    pairs = ([f"--{name}", *str(value).split(" ")] for name, value in given.items() if value is not None)
    return [word for pair in pairs for word in pair]


def call(capsys, *args):
    """Call the command in this process; return its exit code, stdout and stderr."""
    try:
        main(["retro", *map(str, args)])
        code = 0
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_project_in_one_call_then_again_in_steps(tmp_path, corpus, capsys):
    folder = tmp_path / "p"
    code, out, err = call(capsys, "build", *words(corpus, folder))
    assert (code, out) == (0, f"{folder}: 129 chunks to retrieve; neighbours of 80 train, 16 valid, 16 test chunks\n")
    assert "2 token files, 41 documents, 2,973 tokens: about " in err
    assert "megads: neighbours of train: 80 chunks in 7 blocks, " in err
    config = json.loads((folder / "config.json").read_text())
    assert config["retro_gpt_data_path"] == ["0.3", "a", "0.7", "b"]
    assert config["retro_bert_vocab_file"] == str(corpus.folder / "vocab.txt")
    # The token files are below data/, where Megatron looks for them.
    assert os.path.samefile(folder / "data" / "b.bin", corpus.folder / "b.bin")
    for step in ("train-index", "add", "query"):
        code, out, err = call(capsys, step, "--retro-workdir", folder, "--workers", 1)
        assert (code, "blocks" in err) == (0, False), step
    args = ("--retro-project-dir", folder, "--retro-index-str", "IVF4,Flat", "--workers", 1)
    code, out, err = call(capsys, "train-index", *args)
    assert (code, "training IVF4,Flat on 129 vectors" in err) == (0, True)
    for step in ("add", "query"):
        assert call(capsys, step, "--retro-project-dir", folder, "--workers", 1)[0] == 0
    names = {path.name for path in (folder / "index" / "faiss-par-add" / "IVF4,Flat").iterdir()}
    assert {"empty_1.000.faissindex", "added_1.000_1.000.faissindex", "add_codes"} <= names


def test_tasks_of_megatron_and_a_check(tmp_path, corpus, capsys):
    folder = tmp_path / "p"
    assert call(capsys, "build", *words(corpus, folder, retro_tasks="db-build"))[0] == 0
    assert not (folder / "index").exists()
    code, out, _ = call(capsys, "build", *words(corpus, folder, retro_tasks="index-build,query-neighbors"))
    assert (code, "neighbours of 80 train" in out) == (0, True)
    code, out, _ = call(capsys, "build", *words(corpus, folder, retro_task_validate=0.5))
    assert (code, "files recomputed, no difference (--seed " in out) == (0, True)


BAD = [
    ({"retro_gpt_seq_length": 65}, "--retro-gpt-seq-length 65 is not a multiple of --retro-gpt-chunk-length 16"),
    ({"retro_gpt_seq_length": None}, "a new project needs --retro-gpt-seq-length"),
    ({"retro_gpt_train_samples": 0}, "0 is not in the range x>=1"),
    ({"retro_gpt_data_path": None}, "a new project needs its token files"),
    ({"retro_gpt_data_path": "1.0 /no/such"}, "/no/such.idx: no such file"),
    ({"retro_gpt_data_path": "0.0 {0}/a"}, "all weights are 0"),
    ({"retro_gpt_data_path": "1.0 {0}/a 1.0 {0}/a"}, "name each file once"),
    ({"retro_gpt_vocab_file": "/no/such"}, "/no/such"),
    ({"retro_gpt_tokenizer_type": "GPT3"}, "'GPT3' is not one of"),
    ({"retro_gpt_vocab_file": None, "retro_gpt_merge_file": None}, "a new project needs the tokenizer"),
    ({"retro_gpt_split": "0,1"}, "no chunk to retrieve in the first 0 of 1 of the documents (--retro-gpt-split)"),
    ({"retro_gpt_split": "x"}, "x"),
    ({"retro_bert_vocab_file": "/no/such"}, "/no/such"),
    (
        {"retro_bert_vocab_file": None},
        "BertWordPieceLowerCase needs --retro-bert-vocab-file",
    ),
    ({"retro_index_str": "Nonsense"}, "faiss does not understand it"),
    ({"retro_index_str": "IVF4096,Flat"}, "raise --retro-index-ntrain, or use a smaller index"),
    ({"retro_index_type": "exact", "retro_index_str": "IVF4,Flat"}, "the exact index has none"),
    ({"retro_index_ntrain": 100000}, "--retro-index-ntrain 100000: "),
    ({"retro_index_add_load_fraction": 0}, "0"),
    ({"retro_query_num_neighbors_save": 300}, "is more than --retro-query-num-neighbors-query 200"),
    ({"retro_tasks": "db-build,all"}, "all is not a task; tasks: db-build, "),
    ({"retro_task_validate": 0.5}, "no such file; a Retro project is made by `megads retro build`"),
    ({"bert_embedder_type": "huggingface"}, "--bert-embedder-type huggingface needs --retro-bert-model FOLDER"),
    ({"bert_embedder_type": "huggingface", "retro_bert_model": "/no/such"}, "/no/such: no such folder"),
    ({"bert_embedder_type": "megads", "retro_bert_model": "/no/such"}, "/no/such"),
    ({"retro_project_dir": None}, "Missing option '--retro-project-dir'"),
    ({"retro_gpt_chunk_lenght": 3}, "--retro-gpt-chunk-lenght"),
]


@pytest.mark.parametrize(("more", "problem"), BAD, ids=[f"{n}" for n in range(len(BAD))])
def test_bad_input_is_one_line(tmp_path, corpus, capsys, more, problem):
    more = {name: value.format(corpus.folder) if isinstance(value, str) else value for name, value in more.items()}
    code, out, err = call(capsys, "build", *words(corpus, tmp_path / "p", **more))
    assert (code, out) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith("megads: ")
    assert problem in last
    assert "Traceback" not in err


def test_a_sentence_file_is_refused(tmp_path, corpus, capsys):
    from megads.data.formats.writer import IndexedWriter

    with IndexedWriter(str(tmp_path / "s"), "u2") as writer:
        writer.add_batch(np.array([1, 2, 3]), np.array([2, 1], np.int32), np.array([2]))
        writer.finalize()
    code, _, err = call(capsys, "build", *words(corpus, tmp_path / "p", retro_gpt_data_path=f"1 {tmp_path / 's'}"))
    assert code == 2
    assert "preprocess the text without --split-sentences" in err


def test_a_project_that_is_damaged_is_one_line(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    for step in ("build", "query", "add", "train-index", "validate"):
        code, _, err = call(capsys, step, "--retro-project-dir", tmp_path)
        assert (code, err.count("\n")) == (2, 1)
        assert "not the config.json of a Retro project" in err


def test_the_whole_command_line_of_megatron(tmp_path, corpus, capsys):
    folder = tmp_path / "p"
    bert = [
        "--num-layers",
        24,
        "--hidden-size",
        1024,
        "--seq-length",
        512,
        "--tokenizer-type",
        "BertWordPieceLowerCase",
    ]
    more = ["--data-path", 1.0, "x", "--vocab-file", "/none", "--retro-return-doc-ids", "--output-bert-embeddings"]
    keep = ["--no-retro-index-delete-added-codes", "--fp16"]
    code, out, err = call(capsys, "build", *bert, *more, *words(corpus, folder), *keep)
    assert (code, "129 chunks to retrieve" in out) == (0, True)
    assert err.splitlines()[0] == (
        "megads: not used here: --num-layers, --hidden-size, --seq-length, --tokenizer-type, --data-path, "
        "--vocab-file, --retro-return-doc-ids, --output-bert-embeddings, --fp16"
    )
    code, _, err = call(capsys, "build", *bert, "--num-layer", 3, *words(corpus, folder))
    assert (code, err.count("--num-layer")) == (2, 2)
