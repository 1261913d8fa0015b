from __future__ import annotations

import errno
import json
import os
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megads.checkpoint.format.folders import CheckpointRef
from megads.config.data_stages.read import read_stages
from megads.errors import LaunchError, MegadsError
from megads.launch.branch import branch_folder, is_same_branch, make_branch, remove_unused, request_of_branch
from megads.launch.request import TrainRequest
from megads.monitor.run_state.branches import BranchPoint, read_branch
from tests.config.data_stages.files import derived, write_stages

BRANCH = """stages:
- {name: more, iters: 2}
- {name: anneal, iters: 2, data: [1 here/b], lr: {to: 0}}
"""


def _run(folder: Path, **env: str) -> tuple[CheckpointRef, BranchPoint, TrainRequest]:
    """Return a run of 8 steps of 2 samples with a checkpoint after 4; its files hold what is not read."""
    place = folder / "main/checkpoints/iter_0000004"
    place.mkdir(parents=True)
    for name in ("manifest.json", "rank-00000.safetensors"):
        (place / name).write_text(name)
    (folder / "main/config.yaml").write_text("train.train_iters: 8\n")
    run = derived(Path(""), DATA_STAGES="", TRAIN_ITERS="8", LR_DECAY_STYLE="constant", LR="1e-3", **env)
    manifest: Any = SimpleNamespace(
        settings=run.model_dump(), progress={"consumed_samples": 8, "scheduled_samples": 8}, iteration=4
    )
    point = BranchPoint(str(folder / "main"), 4, 8, 128, str(place))
    request = TrainRequest("tiny", (), {"MACHINE": "cpu"}, "here", Path(__file__).parents[2], sys.executable)
    return CheckpointRef(place, manifest), point, request


def test_files_are_linked_and_what_is_of_the_branch_is_noted(tmp_path: Path) -> None:
    found, point, request = _run(tmp_path)
    folder = branch_folder(tmp_path / "main", "b")
    make_branch(folder, found, point, request, copy=False)
    assert sorted(os.listdir(tmp_path)) == ["b", "main"]
    assert sorted(os.listdir(folder)) == ["branch-settings.yaml", "branch.json", "checkpoints"]
    assert read_branch(folder) == point
    for name in os.listdir(found.path):
        assert os.path.samefile(found.path / name, folder / "checkpoints/iter_0000004" / name)
    asked = request_of_branch(folder, request)
    assert asked.env == {
        "MACHINE": "cpu",
        "RUN_DIR": str(folder),
        "CONFIG_FILE": str(folder / "branch-settings.yaml"),
    }


def test_stages_come_behind_what_was_trained(tmp_path: Path) -> None:
    found, point, request = _run(tmp_path)
    path = write_stages(tmp_path, BRANCH)
    folder = tmp_path / "b"
    given = replace(request, pairs=(f"data.stages={path}",))
    make_branch(folder, found, point, given, copy=True)
    main, more, anneal = read_stages(folder / "stages.yaml")
    assert (main.name, main.unit, main.length, main.batch, main.planned, main.past) == (
        "main",
        "samples",
        8,
        2,
        16,
        True,
    )
    assert main.rate is not None
    assert main.rate.peak == 1e-3
    assert (more.length, more.past, anneal.data.lines) == (2, False, (f"1 {tmp_path}/here/b",))
    asked = request_of_branch(folder, given)
    assert (asked.env["DATA_STAGES"], asked.pairs) == (str(folder / "stages.yaml"), ())


def test_a_name_is_given_once(tmp_path: Path) -> None:
    _, point, _ = _run(tmp_path)
    folder = tmp_path / "b"
    assert not is_same_branch(folder, tmp_path / "main", 4)
    folder.mkdir()
    with pytest.raises(LaunchError, match="b: already exists, no branch of this run; use another --name"):
        is_same_branch(folder, tmp_path / "main", 4)
    (folder / "branch.json").write_text(json.dumps(asdict(point)))
    assert is_same_branch(folder, tmp_path / "main", 4)
    assert is_same_branch(folder, tmp_path / "main", None)
    for other, at in ((tmp_path / "main", 8), (tmp_path / "other", 4)):
        with pytest.raises(LaunchError, match=f"already exists, a branch of {tmp_path}/main at 4"):
            is_same_branch(folder, other, at)


@pytest.mark.parametrize("name", ["", ".", "a/b", "-x", "a" * 81, "a\n"])
def test_a_name_is_one_of_a_folder(name: str) -> None:
    with pytest.raises(LaunchError, match="expected up to 80 letters"):
        branch_folder(Path("runs/main"), name)


WRONG = {
    "link": (errno.EXDEV, "its files cannot be linked into .*--copy copies 35 bytes"),
    "full": (errno.ENOSPC, "No space left on device; use a disk that has room"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_linked_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    found, point, request = _run(tmp_path)
    number, message = WRONG[what]

    def link(source: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number), str(source))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(LaunchError, match=message):
        make_branch(tmp_path / "b", found, point, request, copy=False)
    assert os.listdir(tmp_path) == ["main"]
    make_branch(tmp_path / "b", found, point, request, copy=True)
    assert (tmp_path / "b/checkpoints/iter_0000004/manifest.json").read_text() == "manifest.json"


REFUSED = {
    "a batch that changed": (BRANCH, {"consumed_samples": 6}, "4 steps consumed 6 samples, which are not 4 x GLOBAL_B"),
    "a name twice": (BRANCH.replace("name: more", "name: main"), {}, "has a stage of this name behind it; use another"),
    "a wrong file": (BRANCH.replace("iters: 2", "iter: 2"), {}, "no key 'iter' here; did you mean iters?"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_stages_that_do_not_fit_leave_nothing(tmp_path: Path, what: str) -> None:
    text, facts, message = REFUSED[what]
    found, point, request = _run(tmp_path)
    path = write_stages(tmp_path, text)
    given = replace(request, env={**request.env, "DATA_STAGES": str(path)})
    with pytest.raises(MegadsError, match=re.escape(message)):
        make_branch(tmp_path / "b", found, replace(point, **facts), given, copy=False)
    assert sorted(os.listdir(tmp_path)) == ["main", "stages.yaml"]


def test_only_what_was_never_used_is_removed(tmp_path: Path) -> None:
    found, point, request = _run(tmp_path)
    for name, more, is_left in (("a", "", False), ("b", "lock", False), ("c", "config.yaml", True)):
        folder = tmp_path / name
        make_branch(folder, found, point, request, copy=False)
        if more:
            (folder / more).write_text("")
        remove_unused(folder)
        assert folder.exists() == is_left
    assert sorted(os.listdir(found.path)) == ["manifest.json", "rank-00000.safetensors"]
