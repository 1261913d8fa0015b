"""One host's part of staging: what it unpacks, what it takes for damaged, and where it refuses to put programs."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest

from megads.launch.staging import agent
from megads.launch.staging.agent import Server, StageError, fetch, is_complete, own_folder, remove_old, unpack
from megads.launch.staging.archive import make_archive
from tests.launch.staging.test_archive import environment

SECRET = "s" * 32


@pytest.fixture
def made(tmp_path):
    (tmp_path / "from").mkdir()
    return make_archive(environment(tmp_path / "from"), tmp_path / "archives")


def test_an_environment_works_where_it_is_unpacked(tmp_path, made):
    place = tmp_path / "node" / made.name
    place.parent.mkdir()
    unpack(made.path, place)
    assert is_complete(place)
    assert (place / "env/bin/tool").read_text().splitlines()[0] == f"#!{place}/env/bin/python"
    assert stat.S_IMODE((place / "env/bin/tool").stat().st_mode) == 0o755
    assert f"home = {place}/base/bin" in (place / "env/pyvenv.cfg").read_text()
    assert "version = 3.11" in (place / "env/pyvenv.cfg").read_text()
    assert os.path.realpath(place / "env/bin/python") == str(place / "base/bin/python3")
    was, now = tmp_path / "from/base/lib/os.py", place / "base/lib/os.py"
    assert int(now.stat().st_mtime) == int(was.stat().st_mtime)  # a compiled file names it
    assert [path.name for path in place.parent.iterdir()] == [made.name]


@pytest.mark.parametrize("name", ["env/lib/site-packages/mine.py", "env/bin/python", "env/pyvenv.cfg"])
def test_what_lacks_a_file_is_not_complete(tmp_path, made, name):
    place = tmp_path / made.name
    unpack(made.path, place)
    (place / name).unlink()
    assert not is_complete(place)


def test_what_has_a_shorter_file_or_no_list_is_not_complete(tmp_path, made):
    place = tmp_path / made.name
    unpack(made.path, place)
    (place / "base/lib/os.py").write_text("x")
    assert not is_complete(place)
    unpack(made.path, place)
    assert is_complete(place)
    (place / agent.FILES).write_text("[")
    assert not is_complete(place)
    assert not is_complete(tmp_path / "none")


def test_a_name_that_leads_elsewhere_is_refused(tmp_path):
    import tarfile

    for name in ("../out", "/tmp/out", "a/../../out"):
        with tarfile.open(tmp_path / "bad.tar", "w") as tar:
            tar.addfile(tarfile.TarInfo(name))
        with pytest.raises(StageError, match="is not a name in it"):
            unpack(tmp_path / "bad.tar", tmp_path / "place")
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        link = tarfile.TarInfo("a")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("a"))
    with pytest.raises(StageError, match="file exists"):
        unpack(tmp_path / "bad.tar", tmp_path / "place")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.tar"]


def test_an_archive_is_sent_to_whoever_knows_the_secret(tmp_path, made):
    server = Server(made.path, SECRET)
    server.start()
    try:
        fetch("127.0.0.1", server.port, SECRET, tmp_path / "got", made.digest, made.num_bytes)
        assert (tmp_path / "got").read_bytes() == made.path.read_bytes()
        with pytest.raises(StageError, match=f"0 of {made.num_bytes} bytes arrived"):
            fetch("127.0.0.1", server.port, "x" * 32, tmp_path / "got", made.digest, made.num_bytes)
        with socket.create_connection(("127.0.0.1", server.port)) as link:
            link.sendall(b"s")  # and ends
        with pytest.raises(StageError, match="its SHA-256 differs"):
            fetch("127.0.0.1", server.port, SECRET, tmp_path / "got", "0" * 64, made.num_bytes)
    finally:
        server.close()
    with pytest.raises(StageError, match="connection refused"):
        fetch("127.0.0.1", server.port, SECRET, tmp_path / "got", made.digest, made.num_bytes)


def test_an_archive_that_was_cut_short_is_refused(tmp_path, made):
    made.path.write_bytes(made.path.read_bytes()[:-5])
    server = Server(made.path, SECRET)
    server.start()
    try:
        with pytest.raises(StageError, match=f"{made.num_bytes - 5} of {made.num_bytes} bytes arrived"):
            fetch("127.0.0.1", server.port, SECRET, tmp_path / "got", made.digest, made.num_bytes)
    finally:
        server.close()


def test_a_folder_that_others_can_write_is_refused(tmp_path):
    own_folder(tmp_path / "mine")
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o700
    own_folder(tmp_path / "mine")
    (tmp_path / "mine").chmod(0o770)
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").write_text("")
    for name, problem in (("mine", "only you can write"), ("link", "only you can write"), ("file", "file exists")):
        with pytest.raises(StageError, match=problem):
            own_folder(tmp_path / name)


def test_only_what_was_not_used_for_long_is_removed(tmp_path):
    for name, age_s in (("now", 0), ("old", 100), ("kept", 100)):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.tar").write_text("")
        for path in (tmp_path / name, tmp_path / f"{name}.tar"):
            os.utime(path, (time.time() - age_s,) * 2)
    assert remove_old(tmp_path, "kept", 50) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "kept.tar", "now", "now.tar"]


def test_an_agent_without_a_registry_says_so():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    env = {agent.AT: f"{port} 127.0.0.1", agent.SECRET: SECRET}
    done = subprocess.run([sys.executable, "-I", "-S", agent.__file__], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("megads stage: ")
    assert f"does not reach the host that stages, port {port} (127.0.0.1: Connection refused)" in done.stderr


def test_an_agent_imports_the_standard_library_only():
    code = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='x'); print(*sys.modules)"
    words = [sys.executable, "-I", "-S", "-c", code, agent.__file__]
    loaded = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    known = {*sys.stdlib_module_names, "__main__"}
    assert {name.partition(".")[0] for name in loaded} - known == set()
    assert len(loaded) < 120


def test_two_agents_of_one_host_take_turns(tmp_path):
    order = []

    def work(name):
        with agent.locked(tmp_path / "x.lock"):
            order.append(name)
            time.sleep(0.05)
            order.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order[0] == order[1]
    assert order[2] == order[3]


def test_messages_end_where_the_other_side_does():
    ours, theirs = socket.socketpair()
    lines = agent.Lines(ours)
    theirs.sendall(b'{"a": 1}\n{"cut')
    theirs.close()
    assert lines.receive() == {"a": 1}
    assert lines.receive() == {}
    ours.close()
