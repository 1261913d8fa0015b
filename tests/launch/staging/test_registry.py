"""Who sends the archive to whom: real agents, each with a folder of its own in the place of a host's disk."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack

import pytest

from megads.launch.staging import agent
from megads.launch.staging.agent import Lines, Server, is_complete
from megads.launch.staging.archive import make_archive
from megads.launch.staging.registry import FAN_OUT, Registry, _Holder
from tests.launch.staging.test_archive import environment

SECRET = "s" * 32


@pytest.fixture
def made(tmp_path):
    (tmp_path / "from").mkdir()
    return make_archive(environment(tmp_path / "from"), tmp_path / "archives")


def serve(registry, start):
    """Run the registry; ``start(port)`` starts agents, which are waited for at the end."""
    with ExitStack() as stack:
        started = []

        def begin(port):
            started.extend(stack.enter_context(process) for process in start(port))
            return lambda: any(process.poll() is None for process in started)

        report = registry.run(begin)
        assert [process.wait(60) for process in started].count(0) >= 0
    return report


def agents(folders, at="127.0.0.1", secret=SECRET):
    """Return what starts an agent for each folder."""

    def start(port):
        env = {agent.AT: f"{port} {at}", agent.SECRET: secret}
        words = [sys.executable, "-I", "-S", agent.__file__]
        return [subprocess.Popen([*words, str(folder)], env=env) for folder in folders]

    return start


def test_every_host_gets_the_environment_and_the_next_time_has_it(tmp_path, made):
    folders = [tmp_path / f"node{i}" for i in range(7)]
    report = serve(Registry(made, "", 7, SECRET), agents(folders))
    assert (report.failed, report.missing, len(report.hosts)) == ([], 0, 7)
    assert not any(host.reused for host in report.hosts)
    for folder in folders:
        assert is_complete(folder / made.name)
        assert not list(folder.glob("*.tar"))  # gone when nobody fetches it any more
    (folders[3] / made.name / "env/pyvenv.cfg").unlink()
    shutil.rmtree(folders[5])
    report = serve(Registry(made, "", 7, SECRET), agents(folders))
    assert [host.reused for host in report.hosts].count(True) == 5
    assert all(is_complete(folder / made.name) for folder in folders)


def test_what_is_staged_is_removed(tmp_path, made):
    folders = [tmp_path / "node0", tmp_path / "node1"]
    serve(Registry(made, "", 2, SECRET), agents(folders))
    report = serve(Registry(None, "", 2, SECRET), agents(folders))
    assert report.failed == []
    assert [list(folder.iterdir()) for folder in folders] == [[], []]


class FakeAgent(threading.Thread):
    """Speaks as an agent does; ``hold`` keeps what it fetches from others from ending."""

    def __init__(self, port, archive, served=None):
        super().__init__(daemon=True)
        self.port, self.archive, self.served = port, archive, served
        self.sources, self.returncode = [], None
        self.start()

    def run(self):
        with socket.create_connection(("127.0.0.1", self.port)) as link:
            lines = Lines(link)
            lines.send(secret=SECRET, host="fake")
            lines.receive()
            self.work(lines)
        self.returncode = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.join(60)

    def poll(self):
        return self.returncode

    def wait(self, timeout):
        self.join(timeout)
        return 0


def test_hosts_that_have_it_send_it_and_none_has_more_than_a_few_at_a_time(made):
    asked, most, lock, all_there = {}, [0], threading.Lock(), threading.Barrier(24)

    class Fetching(FakeAgent):
        def work(self, lines):
            all_there.wait(60)
            lines.send(state="wants", problem="")
            source = lines.receive()
            with lock:
                asked[source["port"]] = asked.get(source["port"], 0) + 1
                most[0] = max(most[0], asked[source["port"]])
            with lock:
                asked[source["port"]] -= 1
            lines.send(state="fetched", port=10_000 + id(self) % 50_000)
            lines.send(state="ended")
            lines.receive()

    report = serve(Registry(made, "", 24, SECRET), lambda port: [Fetching(port, made) for _ in range(24)])
    assert report.failed == []
    assert len(asked) > 3  # not the first one alone
    assert most[0] <= FAN_OUT


def test_a_host_that_sends_nonsense_is_not_asked_again(tmp_path, made):
    """The registry knows two hosts that have it; the one that is asked first has another archive."""
    wrong = tmp_path / "wrong.tar"
    wrong.write_bytes(b"x" * made.num_bytes)
    server = Server(wrong, SECRET)
    server.start()
    registry = Registry(made, "", 2, SECRET)

    registry._holders.insert(0, _Holder("liar", "127.0.0.1", server.port))
    report = serve(registry, agents([tmp_path / "node", tmp_path / "other"]))
    server.close()
    assert report.failed == []
    assert 1 <= server.num_sent <= 2
    assert is_complete(tmp_path / "node" / made.name)


def test_a_host_that_fails_is_named_and_the_others_are_done(tmp_path, made):
    (tmp_path / "node1").write_text("a file in the way")
    folders = [tmp_path / f"node{i}" for i in range(3)]
    report = serve(Registry(made, "", 3, SECRET), agents(folders))
    assert [host.problem for host in report.failed] == [
        f"{folders[1]}: file exists; pass another folder with --to (STAGE_DIR)",
    ]
    assert is_complete(folders[0] / made.name)
    assert is_complete(folders[2] / made.name)


def test_an_agent_that_is_killed_is_named_and_what_it_left_is_replaced(tmp_path, made):
    class Dying(FakeAgent):
        def work(self, lines):
            lines.send(state="wants", problem="")
            lines.receive()

    folder = tmp_path / "node"
    (folder / f"{made.name}.tmp").mkdir(parents=True)
    (folder / f"{made.name}.tmp/half").write_text("")
    folder.chmod(0o700)
    report = serve(Registry(made, "", 2, SECRET), lambda port: [Dying(port, made), *agents([folder])(port)])
    assert [host.problem for host in report.failed] == ["its agent ended; see its output above"]
    assert sorted(path.name for path in folder.iterdir()) == [made.name, f"{made.name}.lock"]


def test_hosts_that_do_not_report_are_counted(tmp_path, made):
    report = serve(Registry(made, "", 3, SECRET), agents([tmp_path / "node"]))
    assert (len(report.hosts), report.missing, report.failed) == (1, 2, [])
    silent = Registry(made, "", 1, SECRET)

    class Silent(FakeAgent):
        def work(self, lines):
            silent.timeout_s = 0.3  # from here on: a busy host may take longer to say hello
            lines.receive()

    report = serve(silent, lambda port: [Silent(port, made)])
    assert [host.problem for host in report.failed] == ["no news for 0 s"]


def test_strangers_get_nothing(tmp_path, made):
    answers = []

    def start(port):
        for word in (
            b"GET / HTTP/1.0\r\n\r\n",
            b"[1]\n",
            b"[" * 60000 + b"\n",
            json.dumps({"secret": "x", "host": "y"}).encode() + b"\n",
        ):
            with socket.create_connection(("127.0.0.1", port)) as link:
                link.sendall(word)
                link.shutdown(socket.SHUT_WR)
                answers.append(link)
        return agents([tmp_path / "node"], at="0.0.0.0 127.0.0.1")(port)

    report = serve(Registry(made, "", 1, SECRET), start)
    assert [host.name for host in report.hosts] == [os.uname().nodename]
    assert len(answers) == 4
