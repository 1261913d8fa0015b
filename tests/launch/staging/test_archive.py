"""One archive of what ranks import: what is in it, when it is made again, and what is refused."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
import threading
from pathlib import Path

import pytest

from megads.errors import DataError, LaunchError
from megads.launch.staging import archive
from megads.launch.staging.archive import (
    BASE,
    CHECKOUT,
    ENV,
    KEPT,
    Source,
    file_system_of,
    make_archive,
    sources_of,
)


def environment(place: Path) -> list[Source]:
    """Make something like a virtual environment, the Python it was made with, and a checkout."""
    for name, text in {
        "env/bin/tool": f"#!{place}/env/bin/python\nprint('tool')\n",
        "env/lib/site-packages/mine.py": "print('mine')\n",
        "env/pyvenv.cfg": f"home = {place}/base/bin\nversion = 3.11\n",
        "base/bin/python3": "a program\n",
        "base/lib/os.py": "x = 1\n",
        "checkout/megads/__init__.py": "",
        "checkout/envs/cpu.yaml": "device: cpu\n",
        "checkout/data/large.bin": "tokens",
    }.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (place / "env/bin/tool").chmod(0o755)
    (place / "env/bin/python").symlink_to(place / "base/bin/python3")
    (place / "env/lib64").symlink_to("lib")
    return [
        Source(ENV, place / "env"),
        Source(BASE, place / "base"),
        Source(CHECKOUT, place / "checkout", ("megads", "envs")),
    ]


def members(path: Path) -> dict[str, str]:
    """Return name -> content, or the target of a link."""
    with tarfile.open(path) as tar:
        return {m.name: m.linkname or tar.extractfile(m).read().decode() for m in tar}


def test_an_archive_holds_what_ranks_import_and_is_named_by_its_content(tmp_path):
    made = make_archive(environment(tmp_path), tmp_path / "archives")
    content = members(made.path)
    assert made.is_new
    assert (made.python, made.has_checkout) == ("env/bin/python", True)
    assert hashlib.sha256(made.path.read_bytes()).hexdigest() == made.digest == made.path.stem
    assert made.num_bytes == made.path.stat().st_size
    assert made.num_files == 7
    assert "checkout/data/large.bin" not in content
    assert content["env/lib/site-packages/mine.py"] == "print('mine')\n"
    assert content["env/lib64"] == "lib"
    # A link to what is in the archive leads there, wherever that is unpacked.
    assert content["env/bin/python"] == "../../base/bin/python3"


def test_a_link_out_of_the_archive_stays_what_it_is(tmp_path):
    env, _, _ = environment(tmp_path)
    made = make_archive([env], tmp_path / "archives")
    assert members(made.path)["env/bin/python"] == str(tmp_path / "base/bin/python3")


def test_an_archive_is_made_once_and_again_when_a_file_changes(tmp_path):
    sources, folder = environment(tmp_path), tmp_path / "archives"
    first = make_archive(sources, folder)
    assert make_archive(sources, folder) == archive.Archive(**{**vars(first), "is_new": False})
    (tmp_path / "env/lib/site-packages/mine.py").write_text("print('changed')\n")
    second = make_archive(sources, folder)
    assert second.is_new
    assert second.digest != first.digest
    second.path.write_bytes(second.path.read_bytes()[:-1])  # somebody cut it short
    again = make_archive(sources, folder)
    assert again.is_new
    assert again.digest == second.digest


def test_equal_content_is_an_equal_archive_in_any_order_of_the_files(tmp_path, monkeypatch):
    sources = environment(tmp_path)
    first = make_archive(sources, tmp_path / "archives")
    walk = os.walk

    def backwards(top, **more):
        for folder, names, files in walk(top, **more):
            names.reverse()
            files.reverse()
            yield folder, names, files

    monkeypatch.setattr(archive.os, "walk", backwards)
    assert make_archive(sources, tmp_path / "others").digest == first.digest


def test_several_processes_make_one_archive(tmp_path):
    sources, found = environment(tmp_path), []
    threads = [
        threading.Thread(target=lambda: found.append(make_archive(sources, tmp_path / "archives"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.is_new for each in found) == [False, False, False, True]


def test_old_archives_are_removed_and_nothing_else_stays(tmp_path):
    sources, folder = environment(tmp_path), tmp_path / "archives"
    for number in range(KEPT + 2):
        (tmp_path / "env/lib/site-packages/mine.py").write_text("#" * number)
        made = make_archive(sources, folder)
        os.utime(made.path, (number, number))
    assert len(list(folder.glob("*.tar"))) == KEPT
    assert made.path.exists()
    assert {path.suffix for path in folder.iterdir()} == {".tar", ".json"}


def test_a_file_that_becomes_shorter_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    sources, folder = environment(tmp_path), tmp_path / "archives"
    entries = archive._entries

    def cut_short(given):
        yield from entries(given)
        (tmp_path / "env/lib/site-packages/mine.py").write_text("")

    monkeypatch.setattr(archive, "_entries", cut_short)
    with pytest.raises(DataError, match=r"mine\.py: became shorter while it was read"):
        make_archive(sources, folder)
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "archives").write_text("")
    with pytest.raises(DataError, match=r"archives: file exists; use another folder \(--archives DIR\)"):
        make_archive(environment(tmp_path), tmp_path / "archives")


def test_a_missing_source_is_one_line(tmp_path):
    with pytest.raises(DataError, match="gone: no such folder"):
        make_archive([Source(ENV, tmp_path / "gone")], tmp_path)
    with pytest.raises(DataError, match="nothing to stage"):
        make_archive([], tmp_path)


def fake_python(path: Path, prefix: str, base: str) -> str:
    path.write_text(f'#!/bin/sh\necho \'["{prefix}", "{base}"]\'\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("prefix", "base", "with_base", "expected"),
    [
        ("/home/me/env", "/usr", None, [ENV, CHECKOUT]),
        ("/home/me/env", "/usr", True, [ENV, CHECKOUT]),
        ("/home/me/env", "/opt/conda", True, [ENV, BASE, CHECKOUT]),
        ("/home/me/env", "/opt/conda", False, [ENV, CHECKOUT]),
        ("/opt/conda", "/opt/conda", None, [ENV, CHECKOUT]),
        ("/usr", "/usr", None, [CHECKOUT]),
    ],
)
def test_what_a_python_needs_is_staged(tmp_path, prefix, base, with_base, expected):
    python = fake_python(tmp_path / "python", prefix, base)
    assert [source.name for source in sources_of(python, tmp_path, with_base=with_base)] == expected


def test_the_base_on_a_shared_file_system_is_staged(tmp_path, monkeypatch):
    python = fake_python(tmp_path / "python", "/home/me/env", "/lus/conda")
    for kind, expected in (("lustre", [ENV, BASE, CHECKOUT]), ("ext4", [ENV, CHECKOUT])):
        monkeypatch.setattr(archive, "file_system_of", lambda path, kind=kind: kind)
        assert [source.name for source in sources_of(python, tmp_path)] == expected


def test_an_installed_megads_needs_no_checkout(tmp_path):
    python = fake_python(tmp_path / "python", "/home/me/env", "/usr")
    assert [source.name for source in sources_of(python, tmp_path / "site-packages")] == [ENV]


def test_a_python_that_does_not_run_is_one_line(tmp_path):
    with pytest.raises(LaunchError, match=r"none: does not run .* MEGADS_PYTHON should be a Python"):
        sources_of(str(tmp_path / "none"), tmp_path)


def test_the_file_system_of_a_path_is_that_of_the_deepest_mount(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "root / ext4 rw 0 0\nhost:/lus /lus lustre rw 0 0\ntmp /lus/local\\040disk tmpfs rw 0 0\nx /lustre xfs rw 0 0\n"
    )
    for path, kind in {
        "/lus/me/env": "lustre",
        "/lus": "lustre",
        "/lus/local disk/env": "tmpfs",
        "/lustre/x": "xfs",
        "/home": "ext4",
    }.items():
        assert file_system_of(Path(path), mounts) == kind
    assert file_system_of(Path("/"), tmp_path / "none") == ""


def test_this_test_makes_archives_that_tar_reads(tmp_path):
    made = make_archive(environment(tmp_path), tmp_path / "archives")
    listed = subprocess.run(["tar", "-tf", str(made.path)], capture_output=True, text=True, check=True).stdout
    assert "env/bin/tool" in listed.split()
