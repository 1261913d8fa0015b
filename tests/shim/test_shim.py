"""The shim does what its rules say: each call, each action, in started, planted and running processes."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
import time

import pytest

from tests.shim import Rule, planted, shim_env, shimmed
from tests.shim.rules import without_shim


def error_of(call, *args):
    """Return the name of the error that ``call`` raises, empty if it works."""
    try:
        call(*args)
    except OSError as error:
        return errno.errorcode[error.errno]
    return ""


@pytest.mark.parametrize("name", ["EIO", "ENOSPC", "EDQUOT", "ESTALE"])
def test_the_nth_write_to_a_path_fails_with_the_error(tmp_path, name):
    def write(path, text="ab"):
        with open(path, "wb", buffering=0) as file:
            file.write(text.encode())

    with shimmed([Rule("write", "*/shard-*", name, first=2, count=1)]):
        assert [error_of(write, tmp_path / "shard-0") for _ in range(3)] == ["", name, ""]
        assert error_of(write, tmp_path / "other") == ""
    assert error_of(write, tmp_path / "shard-0") == ""


CALLS = {
    "open": lambda path: os.close(os.open(path / "file", os.O_RDONLY)),
    "create": lambda path: os.close(os.open(path / "file", os.O_WRONLY | os.O_CREAT)),
    "read": lambda path: (path / "file").read_bytes(),
    "truncate": lambda path: os.truncate(os.open(path / "file", os.O_RDWR), 0),
    "fsync": lambda path: os.fsync(os.open(path / "file", os.O_RDONLY)),
    "rename": lambda path: os.replace(path / "from", path / "file"),
    "link": lambda path: os.link(path / "from", path / "file2"),
    "unlink": lambda path: os.unlink(path / "file"),
    "mkdir": lambda path: os.mkdir(path / "file3"),
    "rmdir": lambda path: os.rmdir(path / "file-folder"),
    "stat": lambda path: os.stat(path / "file"),
    "utime": lambda path: os.utime(path / "file"),
    "flock": lambda path: fcntl.flock(os.open(path / "file", os.O_RDONLY), fcntl.LOCK_EX),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_can_fail_and_works_without_rules(tmp_path, call):
    for name in ("file", "from"):
        (tmp_path / name).write_text("x" * 8)
    (tmp_path / "file-folder").mkdir()
    with shimmed([Rule(call, f"{tmp_path}/file*", "EIO")]):
        assert error_of(CALLS[call], tmp_path) == "EIO"
    assert error_of(CALLS[call], tmp_path) == ""


def test_list_and_close_can_fail(tmp_path):
    with shimmed([Rule("list", str(tmp_path), "ESTALE"), Rule("close", "*/file", "EDQUOT")]):
        assert error_of(os.listdir, tmp_path) == "ESTALE"
        handle = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
        assert error_of(os.close, handle) == "EDQUOT"
        assert error_of(os.fstat, handle) == "EBADF"  # the descriptor is gone


def test_short_writes_and_reads_move_a_part(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    with shimmed([Rule("write", "*/file", "short"), Rule("read", "*/file", "short", 3)]):
        handle = os.open(path, os.O_RDWR)
        assert os.write(handle, b"abcdefgh") == 4
        os.lseek(handle, 0, os.SEEK_SET)
        assert os.read(handle, 10) == b"abc"
        os.close(handle)
        path.write_bytes(b"z" * 1000)  # Python writes the rest
    assert path.read_bytes() == b"z" * 1000


def test_slow_calls_and_a_rate_take_their_time(tmp_path):
    with shimmed([Rule("fsync", "*/file", "slow", 0.2), Rule("write", "*/file", "rate", 10_000)]):
        handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
        started = time.monotonic()
        os.write(handle, bytes(2000))
        assert time.monotonic() - started >= 0.2
        started = time.monotonic()
        os.fsync(handle)
        assert time.monotonic() - started >= 0.2
        os.close(handle)


def test_an_error_after_the_effect_as_when_an_answer_is_lost(tmp_path):
    (tmp_path / "a").touch()
    with shimmed([Rule("rename", "*/b", "ENOENT", after=True), Rule("mkdir", "*/c", "EEXIST", after=True)]):
        assert error_of(os.rename, tmp_path / "a", tmp_path / "b") == "ENOENT"
        assert error_of(os.mkdir, tmp_path / "c") == "EEXIST"
    assert sorted(os.listdir(tmp_path)) == ["b", "c"]


def test_a_rename_with_a_gap_shows_neither_file(tmp_path):
    (tmp_path / "old").write_text("old")
    (tmp_path / "new").write_text("new")
    pid = os.fork()
    if not pid:
        with shimmed([Rule("rename", "*/old", "gap", 30)]):
            os.rename(tmp_path / "new", tmp_path / "old")
        os._exit(0)
    while (tmp_path / "old").exists():
        time.sleep(0.01)
    assert (tmp_path / "new").exists()
    os.kill(pid, 9)
    os.waitpid(pid, 0)


def test_locks_that_do_not_exist_or_hold_on_one_host_only(tmp_path):
    first = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(first, fcntl.LOCK_EX)
    second = os.open(tmp_path / "lock", os.O_RDWR)

    def lock():
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)

    for do, expected in {"ENOLCK": "ENOLCK", "ENOSYS": "ENOSYS", "granted": ""}.items():
        with shimmed([Rule("flock", "*/lock", do)]):
            assert error_of(lock) == expected
    assert error_of(lock) == "EAGAIN"
    os.close(first)
    os.close(second)


def test_times_of_a_server_that_is_ahead_and_coarse(tmp_path):
    (tmp_path / "file").touch()
    os.utime(tmp_path / "file", ns=(10**18, 10**18 + 7_500_000_000))
    with shimmed([Rule("skew", "*/file", amount=3600), Rule("coarse", "*/file", amount=10)]):
        assert os.stat(tmp_path / "file").st_mtime_ns == 10**18 + 3600 * 10**9
        assert os.stat(tmp_path).st_mtime > 0
    assert os.stat(tmp_path / "file").st_mtime_ns == 10**18 + 7_500_000_000


def test_attributes_and_absence_are_remembered_until_the_folder_is_listed(tmp_path):
    path = tmp_path / "file"
    other = [sys.executable, "-S", "-c", f"open({str(path)!r}, 'a').write('more')"]
    with shimmed([Rule("cache", "*/file", amount=60)]):
        assert not path.exists()
        subprocess.run(other, check=True)
        assert not path.exists()
        assert error_of(lambda: path.read_bytes()) == "ENOENT"
        os.listdir(tmp_path)
        assert os.stat(path).st_size == 4
        subprocess.run(other, check=True)
        assert os.stat(path).st_size == 4
        assert path.read_bytes() == b"moremore"  # close-to-open: opening asks again
        assert os.stat(path).st_size == 8


def test_processes_count_together_and_die_at_their_call(tmp_path):
    env = {**os.environ, **shim_env([Rule("rename", "*/b", "kill", first=3)], counts=tmp_path / "counts", host="nid7")}
    script = (
        "import os, socket; open('a', 'w').close(); os.rename('a', 'b'); print(socket.gethostname(), os.uname()[1])"
    )
    command = [sys.executable, "-S", "-c", script]
    runs = [subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True) for _ in range(3)]
    assert [(run.returncode, run.stdout) for run in runs] == [(0, "nid7 nid7\n"), (0, "nid7 nid7\n"), (-9, "")]
    assert without_shim(env) == {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def test_a_planted_text_changes_a_process_that_runs(tmp_path):
    text = planted([Rule("write", "*/file", "ENOSPC")], host="nid8")
    script = f"import socket\n{text}\nprint(socket.gethostname())\nwith open('file', 'w') as f: f.write('x')"
    done = subprocess.run([sys.executable, "-S", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "nid8\n"
    assert "No space left on device" in done.stderr


def test_this_process_has_its_own_name_again():
    with shimmed([], host="nid9"):
        assert socket.gethostname() == "nid9"
    assert socket.gethostname() != "nid9"


def test_a_rule_that_cannot_be_is_refused():
    for rule in (Rule("jump", "*", "EIO"), Rule("write", "*", "ENOTHING"), Rule("write", "", "EIO")):
        with pytest.raises(AssertionError):
            shim_env([rule])
