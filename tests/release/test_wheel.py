"""A wheel and an sdist that need no checkout: what is in them, and what a user does with them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from megads.release.versions import VERSION
from tests.release.conftest import EPOCH, STAMP
from tests.release.recorder import is_of_this_host, recorder_env

HERE = Path(__file__).parent
NOT_IN_SDIST = {".gitignore"}
MADE = ("PKG-INFO", "megads.egg-info/", "megads/release/commit.txt")
OFFLINE = ("network cut off", "network on")


def _contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def test_the_sdist_has_every_file_of_the_repository(built):
    assert {name for name in built.sdist if not name.startswith(MADE)} == built.files.keys() - NOT_IN_SDIST
    assert built.sdist["megads/release/commit.txt"].decode() == f"{STAMP}\n"
    assert [name for name in built.files.keys() - NOT_IN_SDIST if built.sdist[name] != built.files[name]] == []


def test_the_sdist_holds_nothing_of_when_and_by_whom_it_was_built(built):
    assert int.from_bytes(built.archive.read_bytes()[4:8], "little") == EPOCH  # gzip's header
    with tarfile.open(built.archive) as archive:
        entries = archive.getmembers()
    assert {(each.mtime, each.uid, each.gid, each.uname, each.gname) for each in entries} == {(EPOCH, 0, 0, "", "")}
    assert {each.mode for each in entries} == {0o644, 0o755}
    names = [each.name.split("/") for each in entries]
    assert names == sorted(names)


def test_the_wheel_of_the_sdist_is_that_of_the_checkout_byte_for_byte(built):
    here, there = _contents(built.wheel), _contents(built.wheel_of_sdist)
    assert here.keys() == there.keys()
    assert [name for name in here if here[name] != there[name]] == []
    assert built.wheel.name == built.wheel_of_sdist.name == f"megads-{VERSION}-py3-none-any.whl"
    assert built.wheel.read_bytes() == built.wheel_of_sdist.read_bytes()  # times and order, too


def test_the_wheel_has_every_file_that_megads_reads(built):
    contents = _contents(built.wheel)
    modules = {name for name in built.files if name.startswith("megads/")}
    assert len(modules) > 400
    top = ("ALCF/", "data-lists/", "docs/", "envs/", "examples/", "launchers/")
    others = {name for name in built.files if name.startswith(top)} | {"CHANGELOG.md", "setup.cfg", "train_7B.sh"}
    made = {name for name in contents if ".dist-info/" in name} | {"megads/release/commit.txt"}
    assert contents.keys() - made == modules | {f"megads/shipped/{name}" for name in others}
    for name in modules:
        assert contents[name] == built.files[name], name
    for name in others:
        assert contents[f"megads/shipped/{name}"] == built.files[name], name


def _cut_off_fails() -> str:
    done = subprocess.run([sys.executable, str(HERE / "cut_off.py"), "true"], capture_output=True, text=True)
    return done.stderr.splitlines()[-1] if done.returncode else ""


@pytest.fixture(params=OFFLINE)
def toured(request, installed, tmp_path):
    """Give the folder in which the wheel was used, outside of any checkout, and the addresses that it asked for."""
    before = []
    if request.param == "network cut off":
        why = _cut_off_fails()
        if why and not os.environ.get("MEGADS_REQUIRE_ALL"):
            pytest.skip(f"no network namespace: {why}")
        assert not why, why
        before = [sys.executable, "-S", str(HERE / "cut_off.py")]
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(HERE / "tour.py", tmp_path)  # no file of the checkout is near
    addresses = tmp_path / "addresses"
    done = subprocess.run(
        [*before, sys.executable, "-S", "tour.py", str(installed)],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(home), **recorder_env(addresses)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1100,
    )
    assert not done.returncode, done.stderr
    return tmp_path, addresses.read_text().splitlines()


def test_everything_works_outside_of_a_checkout_and_without_a_network(toured):
    folder, addresses = toured
    shown = {path.stem: path.read_text() for path in folder.glob("*.out")}
    assert shown["version"].startswith(f"megads {VERSION}, commit {STAMP}\n")
    rows = [json.loads(line) for line in (folder / "runs/tiny/metrics.jsonl").read_text().splitlines()]
    losses = [row["lm_loss"] for row in rows if "lm_loss" in row]
    assert len(losses) == 4
    assert "2 ranks on 1 host: TP=2" in shown["train"]
    assert (folder / "runs/tiny/plot.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "score.json").read_text())
    assert json.loads(shown["serve"])["usage"]["completion_tokens"] == 4
    assert "TP" in shown["plan"]
    # Ranks and the client of the server did connect, so the record is one.
    assert any(line.startswith("connect 127.0.0.1 ") for line in addresses)
    assert [line for line in addresses if not is_of_this_host(line)] == []
