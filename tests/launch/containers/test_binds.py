"""Which folders of the host ranks in a container see."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.config.schema import CheckpointConfig, DataConfig, LaunchConfig, RunConfig
from megads.errors import LaunchError
from megads.launch.containers.binds import Bind, binds_of_run, parse_binds


def sources(run, env, cwd, root, more=()):
    return [bind.source for bind in binds_of_run(run, env, cwd, root, more)]


@pytest.fixture
def place(tmp_path):
    """Return a host: a working folder, a checkout, data, a home folder and one for temporary files."""
    for name in ("work", "checkout", "data/books", "ckpt", "home", "tmp"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_everything_that_a_run_reads_or_writes(place):
    (place / "data/list.txt").write_text(f"1 {place}/data/books/part-1 books\n1 {place}/other/part-2 books\n")
    (place / "other").mkdir()
    run = RunConfig(
        name="r",
        data=DataConfig(file_list=str(place / "data/list.txt")),
        checkpoint=CheckpointConfig(load=str(place / "ckpt/run/iter_0000001")),
        launch=LaunchConfig(container=str(place / "image.sif")),
    )
    env = {"HOME": str(place / "home"), "TMPDIR": str(place / "tmp")}
    found = sources(run, env, place / "work", place / "checkout", [place / "work/runs/r"])
    assert found == [str(place / name) for name in ("checkout", "ckpt", "data", "home", "other", "tmp", "work")]


def test_a_folder_inside_another_is_bound_once_and_a_link_with_its_target(place):
    (place / "link").symlink_to(place / "ckpt")
    run = RunConfig(checkpoint=CheckpointConfig(load=str(place / "link")))
    env = {"TMPDIR": str(place / "work")}
    assert sources(run, env, place / "work", place / "work/megads") == [
        str(place / name) for name in ("ckpt", "link", "work")
    ]


def test_an_installed_megads_and_the_folders_of_the_system_are_the_images(place):
    env = {"TMPDIR": str(place / "tmp"), "HOME": "/"}
    assert sources(RunConfig(), env, Path("/usr"), Path("/opt/python/site-packages")) == [str(place / "tmp")]


def test_a_folder_that_comes_later_is_bound_itself_below_the_root(place):
    run = RunConfig(dir="/not-there/run", data=DataConfig(path=str(place / "data/books/part-1")))
    env = {"TMPDIR": str(place / "tmp")}
    found = sources(run, env, place / "work", place / "checkout")
    assert found[0] == "/not-there/run"
    assert str(place / "data/books") in found


def test_names_that_runtimes_cannot_bind_are_refused(place):
    (place / "a b").mkdir()
    with pytest.raises(LaunchError, match="has a colon, comma or blank and cannot be bound"):
        sources(RunConfig(), {"TMPDIR": str(place / "tmp")}, place / "a b", place / "checkout")


def test_what_the_user_binds():
    assert parse_binds("/a, /b:/c /d:ro,/e:/f:ro /g/:/h/:rw") == (
        Bind("/a"),
        Bind("/b", "/c"),
        Bind("/d", read_only=True),
        Bind("/e", "/f", True),
        Bind("/g", "/h"),
    )
    assert [bind.words(both=False) for bind in parse_binds("/a,/b:/c,/d:ro")] == ["/a", "/b:/c", "/d:/d:ro"]
    assert [bind.words(both=True) for bind in parse_binds("/a,/b:/c,/d:ro")] == ["/a:/a", "/b:/c", "/d:/d:ro"]


@pytest.mark.parametrize("text", ["a", "/a:b", "/a:/b:rx", "/a:/b:ro:/c", ":/b"])
def test_what_is_no_bind_is_refused(text):
    with pytest.raises(LaunchError, match=r"CONTAINER_BINDS: '.*' is not HOST, HOST:INSIDE or HOST:INSIDE:ro"):
        parse_binds(text)
