"""envs/python.sh: which Python is used, and how .venv is made, once and whole."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture
def train(bash, checkout):
    """Run train_7B.sh and return (exit code, the Python used or "", stderr)."""

    def run(**changes: object) -> tuple[int, str, str]:
        done = bash(checkout / "train_7B.sh", **changes)
        first = done.stdout.partition("\n")[0]
        return done.returncode, first.removeprefix("python="), done.stderr

    return run


def test_a_venv_is_made_once_and_reused(train, checkout, installs):
    code, python, errors = train()
    assert (code, python) == (0, f"{checkout}/.venv/bin/python")
    assert "making" in errors
    assert train() == (0, python, "")
    (call,) = installs()
    assert f"-c {checkout}/envs/constraints.txt -e {checkout}" in call
    assert f"-e {checkout}[" not in call


def test_changed_package_lists_are_installed_over_the_old(train, checkout, installs):
    train()
    mine = checkout / ".venv" / "mine"
    mine.touch()
    (checkout / "envs/constraints.txt").write_text("numpy==1\n")
    train()
    train()
    assert len(installs()) == 2
    assert mine.exists()


def test_extras_are_installed_when_asked_for(bash, train, checkout, installs):
    train()
    for _ in range(2):
        done = bash("-c", 'source "$0/ALCF/helpers.sh"; megads_setup_env test; echo "${MEGADS_PYTHON}"', checkout)
        assert done.stdout == f"{checkout}/.venv/bin/python\n"
    assert len(installs()) == 2
    assert installs()[1].endswith(f"-e {checkout}[test]")
    assert train()[2] == ""


def test_a_killed_install_is_started_over(train, checkout, env, installs):
    process = subprocess.Popen(
        ["bash", str(checkout / "train_7B.sh")], env=env | {"STUB_PIP": "hang"}, start_new_session=True
    )
    half = checkout / ".venv/bin/half"
    end = time.monotonic() + 60
    while not half.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    code, python, errors = train()
    assert (code, python) == (0, f"{checkout}/.venv/bin/python"), errors
    assert not half.exists()
    assert train()[2] == ""
    assert len(installs()) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_install_takes_pip_along(checkout, env, number):
    process = subprocess.Popen(
        ["bash", str(checkout / "train_7B.sh")],
        env=env | {"STUB_PIP": "hang"},
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + 60
    while not (checkout / ".venv/bin/half").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    os.killpg(process.pid, number)
    assert process.wait(timeout=60) != 0
    end = time.monotonic() + 60
    while running_with(f"{checkout}/.venv/bin/python"):
        assert time.monotonic() < end
        time.sleep(0.02)


def running_with(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ends in this moment
            found += [str(path)] if word.encode() in path.read_bytes() else []
    return found


def test_a_venv_of_the_users_own_is_kept(train, checkout, stub):
    own = checkout / ".venv"
    (own / "bin").mkdir(parents=True)
    shutil.copy(stub, own / "bin/python")
    (own / "notes").write_text("mine")
    assert train()[1] == f"{own}/bin/python"
    assert (own / "notes").read_text() == "mine"


def test_a_venv_whose_python_went_away_is_made_again(train, checkout, installs):
    train()
    (checkout / ".venv/bin/python").unlink()
    assert train()[:2] == (0, f"{checkout}/.venv/bin/python")
    assert len(installs()) == 2


def test_two_shells_at_once_install_once(checkout, env, installs):
    processes = [
        subprocess.Popen(
            ["bash", str(checkout / "train_7B.sh")],
            env=env | {"STUB_PIP": "slow"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    assert len(installs()) == 1
    assert sum("waiting for it" in errors for _, errors in outputs) == 2


@pytest.fixture
def uv(stub, tmp_path):
    """Have a uv on PATH, which ends as STUB_UV says."""
    program = stub.with_name("uv")
    program.write_text('#!/bin/bash\necho "uv $*" >>"${STUB_LOG}"\nexit "${STUB_UV:-0}"\n')
    program.chmod(0o755)
    return lambda: [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("uv ")]


ALONE = {"MEGADS_DEVICE": "cpu", "PIP_FIND_LINKS": None, "PIP_EXTRA_INDEX_URL": None}
"""On any host: no accelerator, and pip knows its own index only."""


def test_without_accelerators_uv_installs_the_cpu_build_of_torch_first(train, checkout, installs, uv):
    code, python, errors = train(**ALONE)
    assert (code, python) == (0, f"{checkout}/.venv/bin/python")
    pins = f"{checkout}/envs/constraints.txt"
    assert uv() == [f"uv pip install --python {python} --torch-backend cpu -c {pins} torch"]
    assert "installing the CPU build of torch" in errors
    assert len(installs()) == 1


def test_a_cpu_build_that_cannot_be_had_is_left_to_pip(train, installs, uv):
    code, _, errors = train(STUB_UV="1", **ALONE)
    assert code == 0
    assert "megads: the CPU build of torch cannot be installed; taking the one that pip finds\n" in errors
    assert len(uv()) == len(installs()) == 1


@pytest.mark.parametrize("name", ["PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"])
def test_an_index_that_the_user_gave_pip_comes_first(train, installs, uv, name):
    assert train(**{**ALONE, name: "/wheels"})[0] == 0
    assert uv() == []
    assert len(installs()) == 1


def test_a_shipped_copy_makes_no_environment(bash, checkout, installs):
    shipped = checkout.parent / "megads/shipped"
    shipped.parent.mkdir()
    checkout.rename(shipped)
    done = bash(shipped / "train_7B.sh")
    assert (done.returncode, installs()) == (2, [])
    assert done.stderr.startswith("megads: no Python here has all packages of megads, which was installed without a")
    assert done.stderr.count("\n") == 1
    assert not (shipped / ".venv").exists()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("disk", "the disk is full; free"),
        ("net", "the package registry cannot be reached; run once where there is a network"),
        ("noensure", "has no venv module; install it (apt-get install python3-venv)"),
        ("other", "see the lines above and"),
    ],
)
def test_a_failed_install_says_why_and_can_be_repeated(train, checkout, how, message):
    code, python, errors = train(STUB_PIP=how)
    assert (code, python) == (2, "")
    assert errors.splitlines()[-1].startswith(f"megads: could not make {checkout}/.venv: ")
    assert message in errors.splitlines()[-1]
    assert train()[0] == 0


def test_the_end_of_the_log_is_shown(train):
    assert "ERROR: something odd\n" in train(STUB_PIP="other")[2]


def test_a_checkout_that_can_not_be_written_says_so(train, checkout):
    (checkout / ".venv").write_text("in the way")
    code, _, errors = train()
    assert (code, errors.count("\n")) == (2, 1)
    assert "set MEGADS_PYTHON" in errors


def test_an_old_python_is_named(train, env, stub, tmp_path):
    # Nothing but the stub and the tools the scripts need: no newer Python to fall back on.
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "readlink", "cat", "cksum", "uname", "grep", "sed"):
        (tools / name).symlink_to(shutil.which(name))
    path = f"{stub.parent}:{tools}"
    code, _, errors = train(PATH=path, STUB_VERSION="3.9.2")
    assert code == 2
    assert errors == (
        f"megads: megads needs Python 3.10 or later; found Python 3.9.2 ({stub}); "
        "put one on PATH or set MEGADS_PYTHON\n"
    )
    shutil.copy(stub, tools / "python3.12")
    (stub).write_text("#!/bin/bash\n[[ $1 == -V ]] && echo Python 3.9; exit 1\n")
    for name in ("mkdir", "flock", "find", "rm", "tail", "sleep", "cp"):
        (tools / name).symlink_to(shutil.which(name))
    assert train(PATH=path)[0] == 0


def test_an_active_environment_is_used_when_it_is_complete(train, checkout, stub, tmp_path, installs):
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        active = tmp_path / variable
        (active / "bin").mkdir(parents=True)
        shutil.copy(stub, active / "bin/python")
        assert train(**{variable: active}, STUB_COMPLETE=active / "bin/python")[1] == f"{active}/bin/python"
    assert train(STUB_COMPLETE=stub)[1] == str(stub)
    assert not installs()
    assert train(VIRTUAL_ENV=active)[1] == f"{checkout}/.venv/bin/python"


def test_the_given_python_is_used_as_it_is(train, stub, tmp_path, installs):
    assert train(MEGADS_PYTHON=stub)[:2] == (0, str(stub))
    assert train(MEGADS_PYTHON="python3")[:2] == (0, str(stub))
    assert not installs()
    (tmp_path / "text").touch()
    for wrong in (tmp_path / "text", tmp_path / "none", tmp_path):
        code, _, errors = train(MEGADS_PYTHON=wrong)
        assert (code, errors.count("\n")) == (2, 1)
        assert f"MEGADS_PYTHON={wrong} is not an executable" in errors


@pytest.mark.parametrize(
    ("wanted", "extra", "expected"),
    [
        ("alpha", "", ""),
        ("alpha>=2", "", ""),
        ("alpha>=2.1,<3", "", ""),
        ("alpha>=2.10", "", "alpha>=2.10, found 2.9.1+cpu"),
        ("alpha>=2,<2.5", "", "alpha>=2,<2.5, found 2.9.1+cpu"),
        ("alpha\n    beta", "", "beta"),
        ("alpha", "test", "gamma"),
    ],
)
def test_packages_are_judged_by_their_metadata(checkout, tmp_path, wanted, extra, expected):
    info = tmp_path / "site" / "alpha-2.9.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: alpha\nVersion: 2.9.1+cpu\n")
    (tmp_path / "site" / "alpha.py").write_text("raise SystemExit('imported')")
    (checkout / "setup.cfg").write_text(
        f"[options]\ninstall_requires =\n    {wanted}\n[options.extras_require]\ntest =\n    gamma\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", str(checkout / "envs/has_packages.py"), *filter(None, [extra])],
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.strip()) == (1 if expected else 0, expected)


@pytest.mark.parametrize(("words", "lacking"), [([], "torch>=2.6"), (["--no-torch"], "")])
def test_a_python_that_starts_ranks_in_containers_needs_no_torch(checkout, words, lacking):
    (checkout / "setup.cfg").write_text("[options]\ninstall_requires =\n    torch>=2.6\n")
    done = subprocess.run(
        [sys.executable, "-S", str(checkout / "envs/has_packages.py"), *words], env={}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.strip()) == (1 if lacking else 0, lacking)


def test_packages_that_are_there_are_listed(checkout, tmp_path):
    info = tmp_path / "site" / "alpha-2.9.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: alpha\nVersion: 2.9.1+cpu\n")
    (checkout / "setup.cfg").write_text("[options]\ninstall_requires =\n    alpha>=3\n    beta\n")
    done = subprocess.run(
        [sys.executable, "-S", str(checkout / "envs/has_packages.py"), "--found"],
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "alpha==2.9.1+cpu\n")


def test_an_install_shows_a_line_for_each_phase_and_while_one_lasts(bash, checkout, tmp_path):
    log = tmp_path / "install.log"
    pip = f"""
      (
        echo 'Collecting torch' ; echo '  Downloading kitoken-0.11.1-cp310-abi3-manylinux_2_28_x86_64.whl (2.5 MB)'
        echo '  Installing build dependencies: started'; sleep 0.7
        echo 'Installing collected packages: numpy, torch, click'; sleep 2.5; exit 3
      ) >{log} &
      : >>{log}
      source "$0/envs/python.sh"; megads_show_progress "$!" {log} 1; echo "rc=$?"
    """
    done = bash("-c", pip, checkout)
    assert done.stdout == "rc=3\n"
    lines = [re.sub(r"\d+ s\)$", "N s)", line) for line in done.stderr.splitlines()]
    # A busy machine may show these two as well.
    others = ("starting pip", "still collecting")
    assert [line for line in dict.fromkeys(lines) if not any(other in line for other in others)] == [
        "megads: collecting packages ... (N s)",
        "megads: installing packages (3), a few minutes on a parallel file system ... (N s)",
        "megads: still installing packages (3) ... (N s)",
    ]
