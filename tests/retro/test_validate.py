"""Recomputing a project finds damage of every step."""

import io

import h5py
import pytest

from megads.errors import ConfigError, DataError
from megads.retro.run import How, run_steps, run_validation
from tests.retro.corpus import make_corpus

ALL = ("db-build", "index-train", "index-add", "query-neighbors")
ONE = How(workers=1)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("validate")
    options = make_corpus(folder / "c").options(index_str="IVF4,Flat")
    run_steps(folder / "p", options, ALL, How(workers=1, keep_vectors=True), io.StringIO())
    return folder / "p"


def _change(path, name):
    with h5py.File(path, "a") as file:
        file[name][-1] = file[name][-1] + 1
        file[name].attrs.pop("megads_crc32", None)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("db/individual/a/*.hdf5", "doc_offsets"),
        ("db/merged/sampled.hdf5", "chunks"),
        ("db/merged/train.hdf5", "doc_offsets"),
        ("index/train_emb/blocks/*.hdf5", "data"),
        ("index/*/*/add_codes/*.hdf5", "data"),
        ("query/valid_*/*.hdf5", "neighbors"),
    ],
)
def test_a_changed_number_is_found(project, pattern, name):
    path = max(project.glob(pattern))
    before = path.read_bytes()
    _change(path, name)
    try:
        stream = io.StringIO()
        with pytest.raises(DataError, match=r"^\S+: 1 of \d+ files that were looked at are damaged"):
            run_validation(project, 1.0, 1, ONE, stream)
        assert f"{path}: {name} is not what is computed now" in stream.getvalue()
    finally:
        path.write_bytes(before)


def test_a_missing_file_and_a_changed_index_are_found(project):
    index, block = next(project.glob("index/*/*/added*index")), next(project.glob("query/test_*/*.hdf5"))
    kept = {path: path.read_bytes() for path in (index, block)}
    try:
        index.write_bytes(kept[index] + b"x")
        with pytest.raises(DataError, match=r"1 of .* damaged"):
            run_validation(project, 1.0, 1, ONE, io.StringIO())
        index.write_bytes(kept[index])
        block.unlink()
        stream = io.StringIO()
        with pytest.raises(DataError, match=r"1 of .* damaged"):
            run_validation(project, 1.0, 1, ONE, stream)
        assert f"{block}: missing" in stream.getvalue()
    finally:
        for path, content in kept.items():
            path.write_bytes(content)


def test_a_share_and_a_seed_choose_the_files(project):
    stream = io.StringIO()
    found = [run_validation(project, share, 1, ONE, stream) for share in (0.01, 0.5, 1.0)]
    assert found[0].blocks < found[1].blocks < found[2].blocks
    assert all(each.damaged == () for each in found)
    assert run_validation(project, 0.5, 1, ONE, stream) == found[1]
    for share in (0.0, 1.01, float("nan")):
        with pytest.raises(ConfigError, match="must be above 0 and at most 1"):
            run_validation(project, share, 1, ONE, stream)


def test_steps_that_were_not_run(tmp_path):
    options = make_corpus(tmp_path / "c").options()
    with pytest.raises(DataError, match="a Retro project is made by `megads retro build`"):
        run_validation(tmp_path / "p", 1.0, 1, ONE, io.StringIO())
    run_steps(tmp_path / "p", options, ("db-build",), ONE, io.StringIO())
    with pytest.raises(DataError, match="run `megads retro add` first"):
        run_validation(tmp_path / "p", 1.0, 1, ONE, io.StringIO())
