"""Whatever the bytes are: a read gives what the description of the format says, or one line of an error."""

from __future__ import annotations

import io
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megads.data.formats.token_file import open_dataset
from megads.data.formats.writer import IndexContent, write_pieces
from megads.data.token_files.inspect import info
from megads.data.token_files.merge import merge
from megads.data.token_files.scan import check
from megads.errors import DataError
from tests.data.factory import numbers
from tests.data.formats.reference import Reference, RefusedError

pytestmark = pytest.mark.timeout(120)
FUZZ = settings(max_examples=250, deadline=None, database=None, derandomize=True)

ODD = [0, 1, -1, 2, 7, 255, 2**15, 2**31 - 1, 2**31, -(2**31), 2**32, 2**61, 2**62, 2**63 - 1, -(2**63), 10**6]
dtypes = st.sampled_from(["u1", "i1", "i2", "i4", "i8", "u2"])
impls = st.sampled_from(["mmap", "cached"])
documents = st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@st.composite
def sound_files(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Draw the bytes of the index and of the tokens of a valid file."""
    dtype, impl, content = draw(dtypes), draw(impls), draw(documents)
    lengths = np.array([length for document in content for length in document], "i4")
    ends = np.cumsum([0] + [len(document) for document in content])
    tokens = (np.arange(lengths.sum()) % 100).astype(dtype)
    index = io.BytesIO()
    content = IndexContent(
        tokens.dtype, len(lengths), len(ends), lambda: iter([lengths] if len(lengths) else []), lambda: iter([ends])
    )
    write_pieces(index, impl, content)
    return index.getvalue(), tokens.tobytes()


def _overwrite(content: bytes, place: int, new: bytes) -> bytes:
    return content[:place] + new + content[place + len(new) :]


@st.composite
def damaged_files(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Draw a file that was valid, and some damage."""
    index, tokens = draw(sound_files())
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(index)))
        number = draw(st.sampled_from(ODD) | st.integers(-(2**63), 2**63 - 1))
        size = draw(st.sampled_from(["<q", "<i"]))
        word = struct.pack(size, number if size == "<q" else (number + 2**31) % 2**32 - 2**31)
        how = draw(st.sampled_from(["field", "field", "field", "anywhere", "cut", "insert", "remove", "bin", "swap"]))
        if how == "field":  # on the grid of the index, where it changes one number
            step, head = len(word), 34 if index[:3] == b"MMI" else 56
            index = _overwrite(index, head + (max(place - head, 0) // step) * step, word)
        elif how == "anywhere":
            index = _overwrite(index, place, word)
        elif how == "cut":
            index = index[:place]
        elif how == "insert":
            index = index[:place] + word + index[place:]
        elif how == "remove":
            index = index[:place] + index[place + 8 :]
        elif how == "bin":
            tokens = tokens[: draw(st.integers(0, len(tokens)))] + draw(st.binary(max_size=9))
        else:
            index, tokens = tokens, index
    return index, tokens


random_files = st.tuples(
    st.binary(max_size=200)
    | st.builds(lambda rest: b"MMIDIDX\0\0" + struct.pack("<QB", 1, 8) + rest, st.binary(max_size=120))
    | st.builds(lambda rest: b"TNTIDX\0\0" + struct.pack("<QQQ", 1, 4, 4) + rest, st.binary(max_size=160)),
    st.binary(max_size=40),
)


def _write(folder: Path, files: tuple[bytes, bytes]) -> Path:
    prefix = folder / "f"
    for suffix, content in zip((".idx", ".bin"), files, strict=True):
        prefix.with_suffix(suffix).write_bytes(content)
    return prefix


def _reference(files: tuple[bytes, bytes]) -> Reference | None:
    try:
        return Reference(*files)
    except RefusedError:
        return None


def _outcome(read):
    """Return what ``read`` gives, or the kind of its error; an error of several lines as it is."""
    try:
        return [int(each) for each in read()]
    except (DataError, RefusedError) as error:
        return repr(error) if "\n" in str(error) else "refused"
    except IndexError:
        return "no such tokens"


def _compare(folder: Path, files: tuple[bytes, bytes]) -> None:
    prefix, wanted = _write(folder, files), _reference(files)
    if wanted is None:
        with pytest.raises(DataError):
            open_dataset(prefix)
        return
    found = open_dataset(prefix)
    assert len(found) == len(wanted.sizes)
    assert numbers(found.document_row) == wanted.documents
    assert numbers(found.length_row) == wanted.sizes
    asked = [(0, None), (1, None), (0, 1), (2, 2), (0, 2**40), (-1, None), (3, -1), (2**62, None)]
    for i in [*range(len(found)), len(found), -1]:
        for offset, length in asked:
            args = (i, offset, length)
            assert _outcome(lambda args=args: found.get(*args)) == _outcome(lambda args=args: wanted.get(*args)), args


@FUZZ
@given(files=sound_files() | damaged_files() | random_files)
def test_readers_do_what_the_description_says(folder, files):
    _compare(folder, files)


@FUZZ
@given(files=sound_files() | damaged_files() | random_files)
def test_check_info_and_merge_agree_on_what_is_sound(folder, files):
    """Nothing but a valid file is called valid, shown or joined, and no bytes make them crash."""
    prefix, wanted = _write(folder, files), _reference(files)
    problems = check(str(prefix))
    assert all("\n" not in problem for problem in problems)
    if wanted is None:
        # No sequences at all: nothing to train on, but valid.
        assert problems or open_dataset(prefix, allow_empty=True).num_tokens == 0
        return
    negative = wanted.is_sound() and any(each < 0 for i in range(len(wanted.sizes)) for each in wanted.get(i))
    assert bool(problems) == (not wanted.is_sound() or negative)
    if wanted.is_sound():
        assert info(str(prefix)).tokens == len(files[1]) // wanted.item
        merge([str(prefix), str(prefix)], str(folder / "out"))
        assert (folder / "out.bin").read_bytes() == 2 * files[1]
        joined = Reference((folder / "out.idx").read_bytes(), 2 * files[1])
        assert joined.sizes == 2 * wanted.sizes
        assert joined.is_sound()
    else:
        for act in (info, lambda name: merge([name], str(folder / "out2"))):
            with pytest.raises(DataError):
                act(str(prefix))
        assert not list(folder.glob("out2*"))
