"""Rows of tokens and neighbours, against a reference in plain loops: samples, neighbours, their continuation."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest

from megads.data.datasets import build_splits, read_shards
from megads.data.retro.project import Project
from megads.data.samples.retro.queried import data_path_of
from megads.data.samples.retro.rows import RetroRow
from megads.data.samples.retro.samples import retro_row
from megads.errors import DataError
from tests.data.factory import make_run
from tests.data.retro.made import EOD, make_project

CHUNK, SEQ, KEPT, K = 4, 8, 3, 2
DOCUMENTS = (9, 4, 1, 13, 6, 8, 2, 7, 5, 11, 3, 10, 9, 6)
SPLIT = (10, 4)  # documents of train and valid


def run_of(folder, cache, **train):
    """Return a run on a project, as the command makes it."""
    retro = {"retro_chunk_length": CHUNK, "retro_num_neighbors": K, "retro_retrieved_chunks": 2}
    model = {"family": "retro", "seq_length": SEQ, "vocab_size": EOD + 1, "num_layers": 6, **retro}
    data = {
        "retro_project_dir": str(folder),
        "path": data_path_of(Project.open(folder)),
        "split": "10,4,0",
        "cache_dir": str(cache),
        **train.pop("data", {}),
    }
    return make_run(model=model, data=data, train={"train_iters": 5, "global_batch": 2, "eval_iters": 1, **train})


def reference_samples(lengths, tokens, first, last, count):
    """Return ``count`` samples of documents first..last, as Megatron-core draws them of a file with a weight."""
    requested = math.ceil(math.ceil(count) * 1.005)
    per_epoch = sum(lengths[first:last])
    epochs = 1
    while (epochs * per_epoch - 1) // SEQ < requested:
        epochs += 1
    total = (epochs * per_epoch - 1) // SEQ
    whole = total
    if epochs > 1:
        before = ((epochs - 1) * per_epoch - 1) // SEQ
        if requested - before < int(0.8 * ((per_epoch - 1) // SEQ)):
            whole = before
    rng = np.random.RandomState(1234)
    documents = np.tile(np.arange(first, last, dtype=np.int32), epochs)
    border = (epochs - (whole < total)) * (last - first)
    rng.shuffle(documents[:border])
    rng.shuffle(documents[border:])
    stream = [token for document in documents for token in tokens[document]]
    order = np.arange(total, dtype=np.uint32)
    rng.shuffle(order[:whole])
    rng.shuffle(order[whole:])
    return [stream[number * SEQ : number * SEQ + SEQ + 1] for number in order[:count].tolist()]


def reference_rows(made, split, samples):
    """Return the rows of a split: each sample, then of each chunk k neighbours with the chunk behind each."""
    rows = []
    for number, sample in enumerate(samples):
        row = list(sample)
        for chunk in range(SEQ // CHUNK):
            for neighbor in made.neighbors[split][number * (SEQ // CHUNK) + chunk][:K].tolist():
                if neighbor < 0:
                    row += [EOD] * (2 * CHUNK)
                else:
                    behind = 0 if neighbor == len(made.chunks) - 1 else neighbor + 1
                    row += made.chunk(neighbor, CHUNK) + made.chunk(behind, CHUNK)
        rows.append(row)
    return np.array(rows, np.int64)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("retro") / "project"
    return make_project(
        folder,
        lengths=[DOCUMENTS],
        samples={"train": 14, "valid": 2},
        seq_length=SEQ,
        chunk_length=CHUNK,
        kept=KEPT,
        retro_gpt_eval_interval=1000,
    )


def reference(made, split, count):
    first, last = {"train": (0, SPLIT[0]), "valid": (SPLIT[0], len(DOCUMENTS))}[split]
    tokens = [[*document, EOD] for document in made.documents[0]]
    samples = reference_samples([len(each) for each in tokens], tokens, first, last, count)
    return reference_rows(made, split, samples)


def test_rows_are_those_of_the_reference_byte_for_byte(made, tmp_path):
    run = run_of(made.folder, tmp_path, train_iters=7)
    splits = build_splits(run, read_shards(run))
    for split, count in (("train", 14), ("valid", 2)):
        found = np.stack([splits[split][i] for i in range(len(splits[split]))])
        expected = reference(made, split, count)
        assert found.dtype == expected.dtype
        assert found.shape == (count, splits[split].width) == (count, SEQ + 1 + 2 * K * 2 * CHUNK)
        assert found.tobytes() == expected.tobytes()
    neighbors = made.neighbors["train"][:, :K]
    assert (neighbors == -1).any()
    assert (neighbors >= 0).all(axis=1).any()


def test_a_shorter_run_reads_the_first_samples_that_were_queried(made, tmp_path):
    run = run_of(made.folder, tmp_path, train_iters=2)
    train = build_splits(run, read_shards(run))["train"]
    assert len(train) == 14  # all that have neighbours
    assert np.array_equal(np.stack([train[i] for i in range(4)]), reference(made, "train", 14)[:4])
    assert train.corpus_of(3) == train.mix.corpus_of(3)


def test_samples_repeat_where_that_is_asked_for(made, tmp_path):
    run = run_of(made.folder, tmp_path, train_iters=20, data={"retro_cyclic_train_iters": 20})
    train, expected = build_splits(run, read_shards(run))["train"], reference(made, "train", 14)
    assert len(train) == 40
    for i in (0, 13, 14, 27, 28, 39):
        assert np.array_equal(train[i], expected[i % 14])
    for i in (-1, 40):
        with pytest.raises(IndexError):
            train[i]


def test_a_neighbour_outside_the_vocabulary_is_one_line(made, tmp_path):
    folder = tmp_path / "project"
    shutil.copytree(made.folder, folder)
    run = run_of(folder, tmp_path / "cache", train_iters=7)
    train = build_splits(run, read_shards(run))["train"]
    train.vocab_size = EOD  # the end of documents fills neighbours up
    with pytest.raises(DataError, match=r"a neighbour of train sample \d+ holds token 99 but the model knows 99"):
        [train[i] for i in range(len(train))]


def test_the_parts_of_a_row():
    parts = RetroRow(4, 2, 1, 3)
    retrieved = np.arange(10, 16).reshape(2, 1, 3)
    assert retro_row(np.arange(5), retrieved, parts).tolist() == [*range(5), *range(10, 16)]
