"""Files written here are read by megatron-core, and the other way round, byte for byte."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from megads.data.formats.token_file import IndexedDataset, open_dataset
from megads.data.formats.writer import IndexedWriter
from megads.data.token_files.merge import merge
from megads.data.token_files.scan import check
from tests.data.factory import numbers
from tests.data.samples.upstream import megatron_core

DTYPES = ["uint8", "int8", "int16", "int32", "int64", "uint16"]
# Documents as the tokens of their sequences: usual ones, several sentences, an empty one, an empty sequence.
DOCUMENTS = [[5], [3, 1, 4], [], [2, 0], [], [70]]
LENGTHS = [length for document in DOCUMENTS for length in document]


@pytest.fixture(scope="module")
def core() -> ModuleType:
    megatron_core()  # skips the test where the package is not installed
    return importlib.import_module("megatron.core.datasets.indexed_dataset")


def _tokens(dtype: str) -> np.ndarray:
    limits = np.iinfo(dtype)
    tokens = np.random.RandomState(1).randint(limits.min, limits.max, sum(LENGTHS), dtype=dtype)
    tokens[:2] = limits.min, limits.max
    return tokens


def _write_here(prefix: Path, dtype: str) -> Path:
    with IndexedWriter(prefix, dtype) as writer:
        writer.add_batch(_tokens(dtype), np.array(LENGTHS, "i4"), np.array([len(each) for each in DOCUMENTS], "i8"))
        writer.finalize()
    return prefix


def _write_there(core: ModuleType, prefix: Path, dtype: str, modes: bool = False) -> Path:
    builder = core.IndexedDatasetBuilder(f"{prefix}.bin", dtype=getattr(np, dtype), multimodal=modes)
    done = 0
    for document in DOCUMENTS:
        tokens = _tokens(dtype)[done : done + sum(document)]
        builder.add_document(tokens, document, [length % 3 for length in document] if modes else None)
        done += sum(document)
    builder.finalize(f"{prefix}.idx")
    return prefix


def _pair(prefix: Path) -> tuple[bytes, bytes]:
    return Path(f"{prefix}.idx").read_bytes(), Path(f"{prefix}.bin").read_bytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_write_the_same_bytes(core, tmp_path, dtype):
    assert _pair(_write_here(tmp_path / "here", dtype)) == _pair(_write_there(core, tmp_path / "there", dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_reads_what_is_written_here(core, tmp_path, dtype):
    theirs = core.IndexedDataset(str(_write_here(tmp_path / "x", dtype)))
    tokens = np.split(_tokens(dtype), np.cumsum(LENGTHS)[:-1])
    assert theirs.index.dtype == np.dtype(dtype)
    assert theirs.document_indices.tolist() == [0, 1, 4, 4, 6, 6, 7]
    assert [theirs[i].tolist() for i in range(len(theirs))] == [each.tolist() for each in tokens]
    assert theirs.get(7 - 1, 10, 20).tolist() == tokens[-1][10:30].tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_its_files_are_read_here(core, tmp_path, dtype):
    prefix = _write_there(core, tmp_path / "x", dtype)
    ours, theirs = open_dataset(prefix), core.IndexedDataset(str(prefix))
    assert ours.dtype == theirs.index.dtype
    assert numbers(ours.length_row) == theirs.sequence_lengths.tolist() == LENGTHS
    assert numbers(ours.document_row) == theirs.document_indices.tolist()
    for i in range(len(theirs)):
        assert ours.get(i).tolist() == theirs[i].tolist()
    assert ours.get(6, 10, 20).tolist() == theirs.get(6, 10, 20).tolist()
    assert check(str(prefix)) == [] or np.issubdtype(dtype, np.signedinteger)


def test_multimodal_files(core, tmp_path):
    prefix = _write_there(core, tmp_path / "x", "int32", modes=True)
    ours = IndexedDataset(prefix)
    assert numbers(ours.mode_row) == [length % 3 for length in LENGTHS]
    merge([str(prefix), str(prefix)], str(tmp_path / "joined"))
    theirs = core.IndexedDataset(str(tmp_path / "joined"), multimodal=True)
    assert theirs.index.sequence_modes.tolist() == 2 * numbers(ours.mode_row)
    assert theirs[6 + 7][0].tolist() == ours.get(6).tolist()


def test_joined_files_are_those_of_its_own_merge(core, tmp_path):
    parts = [_write_there(core, tmp_path / name, "uint16") for name in "abc"]
    builder = core.IndexedDatasetBuilder(str(tmp_path / "there.bin"), dtype=np.uint16)
    for part in parts:
        builder.add_index(str(part))
    builder.finalize(str(tmp_path / "there.idx"))
    merge([str(part) for part in parts], str(tmp_path / "here"))
    assert _pair(tmp_path / "here") == _pair(tmp_path / "there")
