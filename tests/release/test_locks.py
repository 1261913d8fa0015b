"""The lock files hold what megads needs, in the tested versions, with hashes; envs/make_locks.py writes them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.release.licences import normalised, packages_of

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "envs/locks"
HASH = re.compile(r"sha256:[0-9a-f]{64}")


@pytest.fixture(scope="module")
def make():
    """Give the module of the script."""
    found = importlib.util.spec_from_file_location("make_locks", ROOT / "envs/make_locks.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def _locked(text: str, make) -> list[tuple[Requirement, list[str]]]:
    return [(Requirement(block.split("\\")[0].strip()), HASH.findall(block)) for block in make.blocks(text)]


def _whole(vendor: str) -> str:
    text = (LOCKS / f"{vendor}.txt").read_text()
    assert "\n-r common.txt\n" in text
    return text + (LOCKS / "common.txt").read_text()


def test_there_is_a_lock_of_each_vendor(make):
    assert {path.stem for path in LOCKS.iterdir()} == {"common", "nvidia", *make.BACKENDS}


@pytest.mark.parametrize("vendor", ["cpu", "nvidia", "amd", "intel"])
def test_every_line_is_one_version_with_hashes_and_names_no_index(make, vendor):
    text = _whole(vendor)
    assert "://" not in text
    locked = _locked(text, make)
    assert len(locked) > 150
    for each, hashes in locked:
        assert re.fullmatch(r"==[\w.]+", str(each.specifier)), each
        assert hashes, each
    assert len(text.splitlines()) == sum(1 + len(hashes) for _, hashes in locked) + 3 + ("# torch" in text)


def test_a_lock_has_all_that_megads_and_its_extras_need_here(make):
    """What is installed is the tested set: every package of it is locked, where its marker holds, in that version."""
    locked = {
        normalised(each.name): str(each.specifier)
        for each, _ in _locked(_whole("nvidia"), make)
        if each.marker is None or each.marker.evaluate()
    }
    needed = packages_of("megads", set(make.extras()) - {"liger"})
    del needed["megads"]
    assert set(needed) - set(locked) == set()
    tested = _constraints()
    wrong = [
        f"{name}{locked[name]}, not {tested[name]}" for name in locked if tested.get(name, "") not in ("", locked[name])
    ]
    assert wrong == []


def _constraints() -> dict[str, str]:
    lines = [line for line in (ROOT / "envs/constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    read = [Requirement(line) for line in lines]
    return {normalised(each.name): str(each.specifier) for each in read if not each.marker or each.marker.evaluate()}


def test_only_nvidias_lock_has_torch_and_what_is_built_for_its_devices(make):
    nvidia = {each.name for each, _ in _locked((LOCKS / "nvidia.txt").read_text(), make)}
    assert {"torch", "triton", "nvidia-nccl-cu13", "liger-kernel"} <= nvidia
    common = {each.name for each, _ in _locked((LOCKS / "common.txt").read_text(), make)}
    assert not common & nvidia
    assert "nvidia-ml-py" in common  # codecarbon's, without device code
    version = _constraints()["torch"]
    for vendor, backend in make.BACKENDS.items():
        assert f"uv pip install --torch-backend={backend} torch{version}\n" in (LOCKS / f"{vendor}.txt").read_text()


def test_what_uv_prints_is_split_by_vendor(make):
    text = "# made\nclick==1 \\\n    --hash=sha256:a\n"
    text += "torch==2.0 ; sys_platform == 'linux' \\\n    --hash=sha256:b \\\n    --hash=sha256:c\n"
    assert make.blocks(text) == ["click==1 \\\n    --hash=sha256:a\n", text[text.index("torch") :]]
    made = make.files(make.blocks(text))
    assert "torch" not in made["common.txt"]
    assert made["nvidia.txt"].endswith(f"-r common.txt\n{text[text.index('torch') :]}")
    assert "--torch-backend=xpu torch==2.0\n-r common.txt\n" in made["intel.txt"]
