"""Whatever lies under the name of a token file, opening it ends at once with one line."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from megads.data.formats.files import NewFiles, ReadFile
from megads.data.formats.token_file import open_dataset
from megads.errors import DataError
from tests.data.factory import write_dataset

pytestmark = pytest.mark.timeout(120)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        # The address of a socket is short: bound by a name in its folder.
        before = os.getcwd()
        os.chdir(path.parent)
        try:
            server.bind(path.name)
        finally:
            os.chdir(before)


@pytest.mark.parametrize("suffix", [".idx", ".bin"])
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: path.mkdir(), "is a folder; expected a regular file"),
        (os.mkfifo, "is a pipe; expected a regular file"),
        (_socket, "is a socket; expected a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device; expected a regular file"),
        (lambda path: path.symlink_to("/dev/tty"), ("is a device", "no such device or address")),
        (lambda path: path.symlink_to(path), "cannot be read: too many levels of symbolic links"),
        (lambda path: path.symlink_to("nowhere"), "no such file; a data prefix is the common part"),
        (lambda path: path.symlink_to("/proc/self/mem"), "file"),
        (lambda path: path.touch(), ("is empty", "has 0 bytes, expected")),
    ],
    ids=["folder", "pipe", "socket", "zero", "tty", "loop", "dangling", "mem", "empty"],
)
def test_no_file_of_tokens(tmp_path, suffix, make, expected):
    path = Path(write_dataset(tmp_path, [5, 3]) + suffix)
    path.unlink()
    make(path)
    with pytest.raises(DataError) as error:
        open_dataset(path)
    assert any(each in str(error.value) for each in ((expected,) if isinstance(expected, str) else expected))
    assert f"data{suffix}" in str(error.value)


def test_the_name_of_a_folder(tmp_path):
    with pytest.raises(DataError, match=rf"no such file; {tmp_path} is a folder, name the files in it"):
        open_dataset(tmp_path)


def test_the_prefix_that_was_given_to_preprocess_names_what_it_wrote(tmp_path):
    """As in ``--output-prefix books`` and then ``--data-path books``; the brackets are no pattern."""
    for name in ("[b]_text_document", "[b]_title_document", "other_text_document"):
        (tmp_path / f"{name}.idx").touch()
    with pytest.raises(DataError) as error:
        open_dataset(tmp_path / "[b]")
    assert str(error.value).endswith(f"a .bin and a .idx file; did you mean {tmp_path}/[b]_text_document?")
    with pytest.raises(DataError, match=r"a \.idx file$"):
        open_dataset(tmp_path / "b")


@pytest.mark.parametrize("prefix", ["a\0b", "x" * 300, "/proc/1/root/x", "/dev/null/x"])
def test_impossible_names(tmp_path, prefix):
    with pytest.raises(DataError):
        open_dataset(tmp_path / prefix)


def test_a_file_that_may_not_be_read(tmp_path):
    """Run by somebody who may not, because root always may."""
    prefix = write_dataset(tmp_path, [5, 3])
    os.chmod(prefix + ".bin", 0)
    program = (
        "import os, sys; from pathlib import Path; from megads.data.formats.files import ReadFile\n"
        "os.geteuid() or os.setresuid(65534, 65534, 65534)\n"
        "try: ReadFile(Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    for folder in (tmp_path, *tmp_path.parents[:2]):
        os.chmod(folder, 0o755)
    done = subprocess.run(
        [sys.executable, "-c", program, prefix + ".bin"], capture_output=True, encoding="utf8", check=False
    )
    assert "DataError" in done.stdout, done.stderr
    assert "cannot be read: permission denied" in done.stdout


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_file_cut_short_while_it_is_open(tmp_path, suffix):
    """With a mapping this would be a bus error, and the end of the process."""
    prefix = write_dataset(tmp_path, [5000] * 40)
    data = open_dataset(prefix)
    assert len(data.get(39)) == 5000
    os.truncate(prefix + suffix, 40)
    with pytest.raises(DataError, match=rf"{suffix}: ends at byte 40, but it had \d+ bytes when it was opened"):
        data.get(39)


def test_a_file_replaced_while_it_is_open_is_read_to_its_end(tmp_path):
    prefix = write_dataset(tmp_path, [50] * 4, seed=1)
    data = open_dataset(prefix)
    before = [data.get(i).tolist() for i in range(4)]
    write_dataset(tmp_path, [2], seed=2)
    assert [data.get(i).tolist() for i in range(4)] == before
    assert len(open_dataset(prefix)) == 1


def test_a_dataset_takes_two_descriptors_and_gives_them_back(tmp_path):
    prefix = write_dataset(tmp_path, [5, 3])
    gc.collect()  # what earlier tests left open closes now, not in between
    before = len(os.listdir("/proc/self/fd"))
    data = [open_dataset(prefix) for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before + 40
    del data
    assert len(os.listdir("/proc/self/fd")) == before


def test_reading_joins_short_reads(tmp_path):
    (tmp_path / "x").write_bytes(bytes(range(256)) * 40)
    assert ReadFile(tmp_path / "x").array("<u2", 5000, 240)[:3].tolist() == [0xF1F0, 0xF3F2, 0xF5F4]
    assert ReadFile(tmp_path / "x").array("u1", 0, 10**9).tolist() == []
    with pytest.raises(DataError, match="ends at byte 10240"):
        ReadFile(tmp_path / "x").read_into(np.empty(100, "u1"), 10200)


def test_only_what_a_dead_process_of_this_host_left_is_removed(tmp_path):
    ours = tmp_path / f"x.bin.{os.uname().nodename}-0123456789ab.tmp"
    others = [tmp_path / "x.bin.elsewhere-0123456789ab.tmp", tmp_path / f"xy.bin.{os.uname().nodename}-01.tmp"]
    for path in (ours, *others):
        path.write_bytes(b"half")
    living = NewFiles(str(tmp_path / "x"), (".bin", ".idx"))
    other = NewFiles(str(tmp_path / "x"), (".bin", ".idx"))
    assert not ours.exists()
    assert all(path.exists() for path in others)
    living[".bin"].write(b"1")
    living[".idx"].write(b"2")
    living.publish()
    other.drop()
    assert (tmp_path / "x.bin").read_bytes() == b"1"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["x.bin", "x.idx", *(each.name for each in others)]
    )
