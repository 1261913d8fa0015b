"""A whole project against plain loops, bit by bit: by any number of workers, killed anywhere, and by faiss."""

import functools
import io
import json
import multiprocessing
import os
import random
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest

from megads.errors import ConfigError, DataError
from megads.retro.run import How, run_steps, run_validation, steps_of
from tests.retro.corpus import Corpus, make_corpus
from tests.retro.reference import Reference

ALL = ("db-build", "index-train", "index-add", "query-neighbors")
ONE = How(workers=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@functools.cache
def _reference(corpus: Corpus) -> tuple[Reference, dict[str, dict[str, np.ndarray]]]:
    found = Reference(corpus, corpus.options())
    return found, {split: found.neighbor_blocks(split) for split in ("train", "valid", "test")}


def build(folder: Path, corpus: Corpus, steps=ALL, how=ONE, **more) -> str:
    """Build a project in this process; return what was reported."""
    stream = io.StringIO()
    run_steps(folder, corpus.options(**more), steps, how, stream)
    return stream.getvalue()


def tree(folder: Path) -> dict[str, bytes]:
    """Return the content of all files of a project, without the sample indices."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".cache" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def arrays(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: file[name][...] for name in file}


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].dtype == expected[name].dtype
        and found[name].shape == expected[name].shape
        and found[name].tobytes() == expected[name].tobytes()
        for name in expected
    )


@pytest.mark.parametrize("index", ["exact", "faiss-base"])
def test_database_and_neighbours_equal_plain_loops(tmp_path, corpus, index):
    folder = tmp_path / "p"
    build(folder, corpus, index_type=index)
    reference, neighbors = _reference(corpus)
    database = reference.database()
    assert {str(path.relative_to(folder)) for path in (folder / "db").rglob("*.hdf5")} == database.keys()
    for name, expected in database.items():
        assert same(arrays(folder / name), expected), name
    config = json.loads((folder / "config.json").read_text())
    for split, blocks in neighbors.items():
        name = config["retro_neighbor_dirs"][split]
        assert name.startswith(f"{split}_")
        assert len(name) == len(split) + 33
        assert sorted(os.listdir(folder / "query" / name)) == sorted(blocks)
        for block, expected in blocks.items():
            assert same(arrays(folder / "query" / name / block), {"neighbors": expected}), (split, block)
    # What the cases are for is there.
    assert any(len(each.get("chunks_invalid", ())) for each in database.values())
    assert (np.concatenate(list(neighbors["train"].values())) == -1).any()


def test_counts_are_written_as_upstream_does(tmp_path, corpus):
    build(tmp_path / "p", corpus, ("db-build",), ntrain=40)
    infos = json.loads((tmp_path / "p" / "db" / "indexed_dataset_infos.json").read_text())
    assert [*infos[0]] == [
        *("ratio", "prefix", "n_docs", "n_docs_train", "n_chunks", "n_chunks_train", "n_chunks_invalid"),
        "n_chunks_sampled",
    ]
    reference = Reference(corpus, corpus.options(ntrain=40))
    for file, info in enumerate(infos):
        rows = reference.chunks(file)
        limit = reference.documents_to_train_on(file)
        valid = [row for row in rows if row[3]]
        assert info == {
            "ratio": corpus.weights[file],
            "prefix": corpus.names[file],
            "n_docs": len(corpus.texts[file]),
            "n_docs_train": limit,
            "n_chunks": len(valid),
            "n_chunks_train": sum(row[0] < limit for row in valid),
            "n_chunks_invalid": len(rows) - len(valid),
            "n_chunks_sampled": int(40 * corpus.weights[file]),
        }
    for name, expected in reference.database().items():
        assert same(arrays(tmp_path / "p" / name), expected), name


def test_workers_make_the_same_files(tmp_path, corpus):
    build(tmp_path / "one", corpus)
    build(tmp_path / "three", corpus, how=How(workers=3))
    one = tree(tmp_path / "one")
    assert tree(tmp_path / "three") == one
    assert not [name for name in one if "/." in f"/{name}"]


def _as_rank(folder: Path, corpus: Corpus, rank: int) -> None:
    build(folder, corpus, how=How(rank=rank, size=2))


def test_ranks_of_a_launcher_make_the_same_files(tmp_path, corpus):
    build(tmp_path / "one", corpus)
    ranks = [
        multiprocessing.get_context("fork").Process(target=_as_rank, args=(tmp_path / "two", corpus, r)) for r in (1, 0)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
    assert tree(tmp_path / "two") == tree(tmp_path / "one")


class _Killer:
    """Kills this process at the ``last``-th time that something becomes durable, begins, or gets its name."""

    def __init__(self, last: int):
        self.count, self.last = 0, last

    def plant(self) -> None:
        for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "mkdir"), (h5py.Group, "create_dataset")):
            setattr(owner, name, self._counting(getattr(owner, name)))

    def _counting(self, call):
        def counted(*args, **more):
            self._tick()
            found = call(*args, **more)
            self._tick()
            return found

        return counted

    def _tick(self) -> None:
        self.count += 1
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def _killed(folder: Path, corpus: Corpus, index: str, last: int, counted) -> None:
    killer = _Killer(last)
    killer.plant()
    build(folder, corpus, index_type=index)
    counted.value = killer.count


@pytest.mark.parametrize("index", ["exact", "faiss-base"])
def test_killed_anywhere_and_run_again_it_is_the_same(tmp_path, corpus, index):
    fork = multiprocessing.get_context("fork")
    counted = fork.Value("i", 0)

    def run(folder: Path, last: int) -> int:
        process = fork.Process(target=_killed, args=(folder, corpus, index, last, counted))
        process.start()
        process.join()
        return process.exitcode

    assert run(tmp_path / "whole", 0) == 0
    total = counted.value
    expected, rng = tree(tmp_path / "whole"), random.Random(os.environ.get("MEGADS_TEST_SEED", "1"))
    deaths = 0
    for chain in range(3):
        folder = tmp_path / str(chain)
        # The later a process is killed, the more of the next one's work is done.
        while (code := run(folder, rng.randint(1, total // 2))) != 0:
            assert code == -signal.SIGKILL
            deaths += 1
        assert tree(folder) == expected
    assert deaths >= 6


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    with h5py.File(path) as file:
        name = max(file, key=lambda each: file[each].nbytes)
        place = file[name].id.get_offset()
    content[place] ^= 1
    path.write_bytes(content)


def test_damaged_and_missing_files_are_named_and_built_again(tmp_path, corpus):
    folder = tmp_path / "p"
    build(folder, corpus)
    expected = tree(folder)
    files = sorted(path for path in folder.rglob("*.hdf5"))
    chosen = [*random.Random(5).sample(files, 6), folder / "db" / "merged" / "train.hdf5"]
    for number, path in enumerate(dict.fromkeys(chosen)):
        (_truncate, _flip, lambda each: each.write_bytes(b"no"))[number % 3](path)
    (folder / "db" / "indexed_dataset_infos.json").write_bytes(b"\xff")
    text = build(folder, corpus)
    assert tree(folder) == expected
    for path in chosen:
        if "merged" not in path.parts:
            assert f"{path}: " in text, path
    assert "it is built again" in text
    # Nothing is left to do.
    assert "in 1 block" not in (again := build(folder, corpus))
    assert "blocks" not in again


def test_other_options_for_the_same_project_are_refused(tmp_path, corpus):
    folder = tmp_path / "p"
    build(folder, corpus)
    before = tree(folder)
    for more, option in (
        ({"chunk_length": 32}, "--retro-gpt-chunk-length"),
        ({"split": "90,10,0"}, "--retro-gpt-split"),
        ({"block_size": 5}, "--retro-block-size"),
        ({"ntrain": 3}, "--retro-index-ntrain"),
        ({"data_path": str(corpus.folder / "a")}, "--retro-gpt-data-path"),
        ({"bert_tokenizer_type": "BertWordPieceCase"}, "--retro-bert-tokenizer-type"),
    ):
        with pytest.raises(ConfigError, match=f"{option}.* was made with .*, not "):
            build(folder, corpus, **more)
    assert tree(folder) == before
    # Samples may be others: their neighbours are in a folder of their own.
    run_steps(folder, {"train_samples": 8}, ("query-neighbors",), ONE, io.StringIO())
    assert len(list((folder / "query").glob("train_*"))) == 2


def test_an_index_that_faiss_cannot_make_and_a_missing_model_leave_the_project_as_it_was(tmp_path, corpus):
    folder = tmp_path / "p"
    build(folder, corpus)
    before = tree(folder)
    with pytest.raises(ConfigError, match="--retro-index-str Foo12: faiss does not understand it for 256 numbers"):
        build(folder, corpus, index_type="faiss-base", index_str="Foo12")
    with pytest.raises(ConfigError, match=r"--retro-bert-model .*nowhere: no such folder"):
        build(tmp_path / "q", corpus, embedder="huggingface", embedder_model=str(tmp_path / "nowhere"))
    assert tree(folder) == before
    assert not (tmp_path / "q" / "config.json").exists()


def test_a_changed_token_file_is_refused(tmp_path):
    corpus = make_corpus(tmp_path / "c")
    build(tmp_path / "p", corpus, ("db-build",))
    make_corpus(tmp_path / "c", seed=4)
    with pytest.raises(DataError, match="its token files changed since the database was built"):
        build(tmp_path / "p", corpus)


def test_steps_need_those_before(tmp_path, corpus):
    folder = tmp_path / "p"
    with pytest.raises(DataError, match="no such file; a Retro project is made by `megads retro build`"):
        build(folder, corpus, ("query-neighbors",))
    build(folder, corpus, ("db-build",))
    with pytest.raises(DataError, match="run `megads retro add` first"):
        build(folder, corpus, ("query-neighbors",))
    with pytest.raises(DataError, match="run `megads retro train-index` first"):
        build(folder, corpus, ("index-add",), index_type="faiss-base")
    with pytest.raises(DataError, match="run `megads retro add` first"):
        build(folder, corpus, ("query-neighbors",), index_type="faiss-base")


def test_a_worker_that_fails_is_one_line(tmp_path, corpus, monkeypatch):
    def fail(*_, **__):
        raise DataError("the disk is full")

    monkeypatch.setattr("megads.data.retro.build.write_block", fail)
    with pytest.raises(DataError, match=r"^the disk is full$"):
        build(tmp_path / "p", corpus, how=How(workers=2))
    monkeypatch.setattr("megads.data.retro.build.write_block", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(DataError, match="ended: SIGKILL; rerun the same command to resume"):
        build(tmp_path / "p", corpus, how=How(workers=2))


def test_two_at_once_are_refused(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr("megads.data.retro.crew._LOCK_S", 0.1)
    (tmp_path / "p").mkdir()
    from megads.storage.file_lock import take_lock

    with take_lock(tmp_path / "p" / ".lock"), pytest.raises(DataError, match="another process works on it"):
        build(tmp_path / "p", corpus)


def test_tasks_are_those_of_megatron():
    assert steps_of("build") == ALL
    assert steps_of("query-pretraining-neighbors,db-build") == ("db-build", "query-neighbors")
    assert steps_of("index-build") == ("index-train", "index-add")
    with pytest.raises(ConfigError, match="--retro-tasks db-build,x: x is not a task; tasks: db-build, "):
        steps_of("db-build,x")


def test_validation_mends_what_differs(tmp_path, corpus):
    folder = tmp_path / "p"
    build(folder, corpus)
    expected = tree(folder)
    stream = io.StringIO()
    assert run_validation(folder, 1.0, 1, ONE, stream).damaged == ()
    path = sorted((folder / "query").rglob("*.hdf5"))[1]
    with h5py.File(path, "a") as file:
        file["neighbors"][0, 0] += 1
        del file["neighbors"].attrs["megads_crc32"]
    with pytest.raises(DataError, match=r"1 of \d+ files that were looked at are damaged; add --repair"):
        run_validation(folder, 1.0, 1, ONE, stream)
    assert f"megads: {path}: neighbors is not what is computed now\n" in stream.getvalue()
    run_validation(folder, 1.0, 1, ONE, stream, mend=True)
    assert not path.exists()
    build(folder, corpus)
    assert tree(folder) == expected
