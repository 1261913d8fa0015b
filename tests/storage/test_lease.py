"""A lease has one holder: when many start at once, when answers are lost, without links, and after a crash."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from dataclasses import replace

import pytest

from megads.storage import lease as leases
from megads.storage.lease import BLOCK, LeaseLost, holder_of, lease_of, stays_the_same, take, this_process
from tests.shim import Rule, shimmed


def test_a_new_folder_has_no_holder_and_the_first_one_gets_it(tmp_path):
    assert holder_of(tmp_path) is None
    lease = take(tmp_path, this_process("17.pbs"), None)
    found = holder_of(tmp_path)
    assert found == lease.holder
    assert (found.host, found.job, found.pid) == (socket.gethostname(), "17.pbs", os.getpid())
    assert found.is_here()
    assert found.runs()
    assert found.text().startswith("job 17.pbs of ")
    assert f" on {socket.gethostname()}, process {os.getpid()}, for " in found.text()
    assert take(tmp_path, this_process(""), None) is None  # nobody is not who holds it


def test_a_lease_goes_on_to_the_next_and_the_old_holder_finds_out(tmp_path):
    first = take(tmp_path, this_process("1"), None)
    first.renew()
    first.check()
    second = take(tmp_path, this_process("2"), holder_of(tmp_path))
    assert holder_of(tmp_path) == second.holder
    for call in (first.check, first.renew):
        with pytest.raises(LeaseLost) as lost:
            call()
        assert lost.value.holder.job == "2"
    first.release()  # of no effect
    assert not holder_of(tmp_path).is_over
    second.release()
    assert holder_of(tmp_path).is_over
    assert len(os.listdir(tmp_path / "lease")) == 2


def test_files_of_old_holders_go_and_a_program_that_follows_finds_its_lease(tmp_path):
    for number in range(12):
        lease = take(tmp_path, this_process(str(number)), holder_of(tmp_path))
    assert sorted(os.listdir(tmp_path / "lease"))[0] == "000004.json"
    assert lease_of(tmp_path, lease.holder.token).path == lease.path
    assert lease_of(tmp_path, "another") is None


def start_at_once(folder, gate, result, rules):
    with shimmed(rules):
        before = holder_of(folder)
        gate.wait()
        lease = take(folder, this_process(str(os.getpid())), before)
        result.put(lease.holder.token if lease else "")


RULES = {
    "locks and links": [],
    "no links": [Rule("link", "*/lease/*", "EPERM")],
    "lost answers": [Rule("link", "*/lease/*", "EEXIST", after=True)],
    "slow": [Rule("link", "*/lease/*", "slow", 0.05)],
    "remembered": [Rule("cache", "*/lease*", amount=60)],
}


@pytest.mark.parametrize("rules", RULES)
def test_of_many_that_start_at_once_one_gets_it(tmp_path, rules):
    context = multiprocessing.get_context("fork")
    for turn in range(3):
        gate, result = context.Barrier(4), context.Queue()
        arguments = (tmp_path, gate, result, RULES[rules])
        started = [context.Process(target=start_at_once, args=arguments) for _ in range(4)]
        for each in started:
            each.start()
        tokens = [result.get(timeout=120) for _ in started]
        for each in started:
            each.join()
        won = [token for token in tokens if token]
        assert len(won) == 1, f"turn {turn}: {won}"
        assert holder_of(tmp_path).token == won[0]


def test_a_record_is_read_whole_or_not_at_all(tmp_path):
    lease = take(tmp_path, this_process("1"), None)
    raw = lease.path.read_bytes()
    assert len(raw) == BLOCK
    for broken in (raw[:100], b"", raw.replace(b'"beat": 0', b'"beat": 1')):  # the last one's CRC-32 differs
        lease.path.write_bytes(broken)
        unknown = holder_of(tmp_path)
        assert (unknown.user, unknown.is_here(), unknown.is_over) == ("somebody", False, False)
        assert stays_the_same(tmp_path, unknown, 0.0)
        lease.path.write_bytes(raw)
        assert not stays_the_same(tmp_path, unknown, 0.0)
    lease.path.write_bytes(b"")
    assert take(tmp_path, this_process("2"), holder_of(tmp_path)).holder.job == "2"


def test_a_reader_never_sees_half_a_renewal(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "_TRIES", 60_000)
    lease, seen, end = take(tmp_path, this_process("1"), None), set(), threading.Event()

    def read():
        while not end.is_set():
            seen.add(holder_of(tmp_path))

    reader = threading.Thread(target=read)
    with shimmed([Rule("write", "*/lease/*", "short", 1000)]):  # a renewal takes five writes
        reader.start()
        for _ in range(50):
            lease.renew()
        end.set()
        reader.join()
    assert {each.token for each in seen} == {lease.holder.token}


def test_who_is_alive_renews_and_who_is_dead_does_not(tmp_path, monkeypatch):
    lease = take(tmp_path, this_process("1"), None)
    seen = holder_of(tmp_path)
    assert stays_the_same(tmp_path, seen, 0.05)
    assert not stays_the_same(tmp_path, seen, 600.0, pause=lambda seconds: lease.renew())
    monkeypatch.setattr(leases, "RENEWS_S", 0.01)
    lost = threading.Event()
    with lease.kept(lambda error: lost.set()):
        assert not stays_the_same(tmp_path, holder_of(tmp_path), 600.0)
        with shimmed([Rule("open", "*/lease/*.json", "ESTALE")]):  # a bad moment of the file system ends nothing
            time.sleep(0.05)
        assert not stays_the_same(tmp_path, holder_of(tmp_path), 600.0)
        take(tmp_path, this_process("2"), holder_of(tmp_path))
        assert lost.wait(600.0)


def test_a_process_of_another_system_or_of_the_past_does_not_run(tmp_path):
    me = this_process("")
    assert not replace(me, place="another boot").is_here()
    assert not replace(me, place="").is_here()
    assert not replace(me, born=me.born + 1).runs()  # the same id, used again
    assert not replace(me, pid=2**22 + 1, born=0).runs()
    with shimmed([], host="nid7"):
        assert not me.is_here()
        assert this_process("").host == "nid7"


@pytest.mark.parametrize("name", ["ENOSPC", "EIO", "EDQUOT"])
def test_a_full_disk_gives_no_lease(tmp_path, name):
    with shimmed([Rule("write", "*/lease/*", name)]), pytest.raises(OSError, match=r".+"):
        take(tmp_path, this_process("1"), None)
    assert holder_of(tmp_path) is None
    assert os.listdir(tmp_path / "lease") == []
