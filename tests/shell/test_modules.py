"""envs/modules.sh and the machines that use it: modules are loaded, and the Python meant is the one got."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

# `module` and `conda` as sites have them: functions, not written for `set -eu`, silent when there is
# no MODULEPATH. SITE is a folder with a Python for each module.
FAKE = r"""
module() {
  echo "module $*" >>"${SITE}/log"
  : ${UNBOUND_IN_SITE_CODE}
  [ "$1" = load ] && [ -n "${MODULEPATH-}" ] || return 0
  case " ${BROKEN-} " in *" $2 "*) return 0 ;; esac
  LOADEDMODULES="${LOADEDMODULES:+${LOADEDMODULES}:}$2/1.0"
  case "$2" in
    frameworks)
      unset VIRTUAL_ENV
      CONDA_PREFIX="${SITE}/frameworks"
      PATH="${CONDA_PREFIX}/bin:${PATH}"
      LD_LIBRARY_PATH="/site/lib:${LD_LIBRARY_PATH-}" ;;
    pytorch) PATH="${SITE}/pytorch/bin:${PATH}" ;;
    conda) conda() { CONDA_PREFIX="${SITE}/base"; PATH="${CONDA_PREFIX}/bin:${PATH}"; false; } ;;
  esac
  return 0
}
"""

SCRIPT = 'source "$0/ALCF/helpers.sh"; megads_setup_env || { echo "status=$? alive"; exit 0; }; '


@pytest.fixture
def site(tmp_path, stub) -> Path:
    """A site with a Python per module, and its `module` in a login shell's start-up file."""
    folder = tmp_path / "site"
    for name in ("frameworks", "pytorch", "base", "venv"):
        (folder / name / "bin").mkdir(parents=True)
        for program in ("python3", "python"):
            shutil.copy(stub, folder / name / "bin" / program)
    (folder / "init").mkdir()
    (folder / "init/bash").write_text(FAKE)
    return folder


@pytest.fixture
def setup(bash, checkout, site):
    """Set up the environment in a shell that is no login shell, and print what came of it."""

    def run(machine, after='echo "python=${MEGADS_PYTHON}"', **changes):
        changes = {"MACHINE": machine, "MODULESHOME": site, "SITE": site, "MODULEPATH": "/mods", **changes}
        return bash("-eu", "-c", SCRIPT + after, checkout, **changes)

    return run


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ("aurora", "frameworks"),
        ("sunspot", "frameworks"),
        ("polaris", "base"),
        ("sirius", "base"),
        ("sophia", "base"),
        ("perlmutter", "pytorch"),
    ],
)
def test_the_sites_python_is_used_when_it_has_the_packages(setup, site, machine, name):
    python = site / name / "bin/python3"
    done = setup(machine, STUB_COMPLETE=python)
    assert (done.stdout, done.stderr) == (f"python={python}\n", "")


def test_polaris_looks_in_its_module_folder(setup, site):
    setup("polaris", STUB_COMPLETE=site / "base/bin/python3")
    assert (site / "log").read_text().splitlines() == ["module use /soft/modulefiles", "module load conda"]


@pytest.mark.parametrize("machine", ["aurora", "polaris", "perlmutter", "frontier"])
def test_a_shell_without_module_says_so_in_one_line(setup, site, machine):
    (site / "init/bash").unlink()
    done = setup(machine)
    assert done.stdout == "status=2 alive\n"
    assert done.stderr.count("\n") == 1
    assert f"machine {machine}: this shell has no `module` command; try it in a login shell" in done.stderr


def test_a_module_that_does_nothing_is_found(setup):
    done = setup("aurora", MODULEPATH="")
    assert (done.stdout, done.stderr.count("\n")) == ("status=2 alive\n", 1)
    assert "`module load frameworks` loaded nothing (MODULEPATH=)" in done.stderr
    done = setup("frontier", BROKEN="rocm")
    assert "`module load rocm` loaded nothing (MODULEPATH=/mods)" in done.stderr


def test_conda_that_activates_nothing_is_found(setup, site):
    (site / "init/bash").write_text(FAKE.replace('conda() { CONDA_PREFIX="${SITE}/base"', "conda() { :"))
    done = setup("polaris")
    assert (done.stdout, done.stderr.count("\n")) == ("status=2 alive\n", 1)
    assert "`conda activate base` activated nothing" in done.stderr


def test_another_python_before_the_modules_is_found(setup, site, stub):
    # A start-up file that puts its own folder first again, as pyenv and conda do.
    text = FAKE.replace(
        'PATH="${CONDA_PREFIX}/bin:${PATH}"\n', f'PATH="{stub.parent}:${{CONDA_PREFIX}}/bin:${{PATH}}"\n'
    )
    (site / "init/bash").write_text(text)
    done = setup("aurora")
    assert (done.stdout, done.stderr.count("\n")) == ("status=2 alive\n", 1)
    assert f"the modules mean {site}/frameworks/bin/python3 and python3 is {stub}" in done.stderr


def test_a_module_that_gives_no_python_is_found(setup, site):
    (site / "init/bash").write_text(FAKE.replace("pytorch) PATH", "pytorch) OTHER"))
    done = setup("perlmutter", PATH="/usr/bin:/bin")
    assert (done.stdout, done.stderr.count("\n")) == ("status=2 alive\n", 1)
    assert "the modules gave no Python, python3 is /usr/bin/python3" in done.stderr


def test_given_python_loads_nothing(setup, site, stub):
    done = setup("aurora", MEGADS_PYTHON=stub)
    assert (done.stdout, done.stderr) == (f"python={stub}\n", "")
    assert not (site / "log").exists()


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX", "MEGADS_ACTIVE"])
@pytest.mark.parametrize("machine", ["aurora", "polaris", "perlmutter", "frontier"])
def test_the_users_environment_survives_the_modules(setup, site, machine, variable):
    venv = site / "venv"
    (venv / "lib").mkdir()
    (venv / "lib/libsycl.so.8").touch()
    after = 'printf "%s\\n" "${MEGADS_PYTHON}" "${PATH%%:*}" "${LD_LIBRARY_PATH%%:*}" "${LD_LIBRARY_PATH}"'
    done = setup(machine, after, **{variable: venv}, STUB_COMPLETE=venv / "bin/python", LD_LIBRARY_PATH="/mine:")
    python, first, library, libraries = done.stdout.splitlines()
    assert (python, first, library) == (f"{venv}/bin/python", f"{venv}/bin", f"{venv}/lib"), done.stderr
    assert "module load" in (site / "log").read_text()
    assert "" not in libraries.split(":")


def test_an_active_environment_comes_first_also_when_the_modules_were_loaded_before(setup, site):
    venv = site / "venv"
    text = FAKE.replace('CONDA_PREFIX="${SITE}/frameworks"\n      PATH="${CONDA_PREFIX}/bin:${PATH}"', ":")
    (site / "init/bash").write_text(text)
    loaded = {"CONDA_PREFIX": site / "frameworks", "VIRTUAL_ENV": venv, "LOADEDMODULES": "frameworks/1.0"}
    path = f"{venv}/bin:{site}/frameworks/bin:/usr/bin:/bin"
    done = setup("aurora", PATH=path, STUB_COMPLETE=venv / "bin/python", **loaded)
    assert done.stdout == f"python={venv}/bin/python\n", done.stderr
    done = setup("aurora", PATH=path, STUB_COMPLETE=site / "frameworks/bin/python3", **loaded)
    assert done.stdout == f"python={site}/frameworks/bin/python3\n", done.stderr


def test_what_the_site_lacks_goes_into_an_environment_on_top(setup, site, checkout, installs):
    has_torch = 'case "$*" in *--found*) echo torch==2.10.0+xpu; echo numpy==1.26.4; exit ;; esac\n'
    program = site / "frameworks/bin/python3"
    program.write_text(program.read_text().replace('case "$*" in\n', has_torch + 'case "$*" in\n', 1))
    venv = checkout / ".venv-aurora"
    done = setup("aurora")
    assert done.stdout == f"python={venv}/bin/python\n", done.stderr
    (call,) = installs()
    assert f"-c {venv}/site.txt -e {checkout}" in call
    assert (venv / "site.txt").read_text().splitlines() == ["torch==2.10.0+xpu", "numpy==1.26.4"]
    again = setup("aurora")
    assert (again.stdout, again.stderr, len(installs())) == (done.stdout, "", 1)


def test_a_site_python_without_torch_is_not_built_on(setup, installs):
    done = setup("perlmutter")
    assert (done.stdout, done.stderr.count("\n")) == ("status=2 alive\n", 1)
    assert "pytorch/bin/python3 of its modules has no torch" in done.stderr
    assert not installs()


def test_no_torch_of_another_vendor_is_installed(setup, installs):
    done = setup("frontier")
    assert (done.stdout, done.stderr.count("\n")) == ("status=2 alive\n", 1)
    assert "machine frontier has no torch of its own; install torch for ROCm" in done.stderr
    assert not installs()


@pytest.mark.parametrize(
    ("before", "after"),
    [("", "/new"), (":", "/new"), ("/a:", "/new:/a"), ("/a::/b", "/new:/a:/b"), ("/a:/new:/b", "/new:/a:/b")],
)
def test_no_empty_entry_in_a_list_of_folders(bash, checkout, before, after):
    script = (
        'set -u; source "$0/ALCF/helpers.sh"; source "$0/envs/modules.sh"; megads_prepend LIST /new; echo "${LIST}"'
    )
    assert bash("-c", script, checkout, LIST=before).stdout == f"{after}\n"


def test_nothing_ends_a_shell_that_sources_the_helpers(bash, checkout):
    script = """
        source "$0/ALCF/helpers.sh"
        MACHINE=none; megads_setup_env; echo "alive after $?"
        MACHINE=cpu; MEGADS_PYTHON=/none; megads_setup_env; echo "alive after $?"
        MEGADS_PYTHON=""; touch "$0/.venv"; megads_setup_env; echo "alive after $?"
    """
    done = bash("-c", script, checkout, MACHINE=None)
    assert done.stdout == "alive after 2\n" * 3
    assert done.stderr.count("\n") == 3


def test_other_shells_are_told_to_use_bash(bash, checkout):
    done = bash("-c", 'sh -c ". \\"$0/ALCF/helpers.sh\\"; echo alive" "$0"', checkout)
    assert done.stderr == "megads: ALCF/helpers.sh needs bash; start one (bash -l) and source it there\n"


def test_functions_that_users_know(bash, checkout, stub):
    script = """
        launch() { echo mine; }
        source "$0/ALCF/helpers.sh"
        ezpz_get_machine_name; megads_machine; launch
        ezpz_launch -n 2 -- python x.py; ezpz_setup_env; echo "${MEGADS_PYTHON}"
    """
    done = bash("-c", script, checkout, MEGADS_PYTHON=stub, MACHINE="cpu")
    lines = done.stdout.splitlines()
    assert lines[:3] == ["cpu", "cpu", "mine"], done.stderr
    assert lines[lines.index("-m") :] == ["-m", "megads", "launch", "-n", "2", "--", "python", "x.py", str(stub)]


def test_a_machine_that_was_not_named_is_not_exported(bash, checkout, stub):
    script = 'source "$0/ALCF/helpers.sh"; megads_setup_env; env'
    done = bash("-c", script, checkout, MACHINE=None, MEGADS_DEVICE="cpu", STUB_COMPLETE=stub)
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert "MACHINE" not in names
    assert {"MEGADS_ROOT", "MEGADS_PYTHON", "MEGADS_FOUND_PYTHON", "PYTHONPATH"} <= names


@pytest.mark.parametrize(
    ("machine", "modules"),
    [
        ("aurora", "apptainer fuse-overlayfs"),
        ("frontier", "olcf-container-tools apptainer-enable-mpi apptainer-enable-gpu"),
        ("polaris", "apptainer cray-mpich-abi"),
    ],
)
def test_ranks_in_a_container_load_the_modules_of_its_runtime(setup, site, machine, modules):
    given = {"STUB_COMPLETE": str(site / ("base" if machine == "polaris" else "frameworks") / "bin/python3")}
    if machine == "frontier":
        given = {"VIRTUAL_ENV": site / "venv", "STUB_COMPLETE": str(site / "venv/bin/python")}
    show = 'echo "${APPTAINERENV_LD_LIBRARY_PATH-none}"'
    without = setup(machine, show, **given)
    assert (without.stdout, "apptainer" in (site / "log").read_text()) == ("none\n", False)
    (site / "log").unlink()
    within = setup(machine, show, **given, CONTAINER="llm.sif")
    assert (site / "log").read_text().endswith("".join(f"module load {name}\n" for name in modules.split()))
    assert within.stdout.endswith("/opt/cray/pe/pals/1.2.12/lib\n" if machine == "polaris" else "none\n")
    (site / "log").unlink()
    refused = setup(machine, show, **given, CONTAINER="llm.sif", BROKEN=modules.split()[0])
    assert refused.stdout == "status=2 alive\n"
    assert f"`module load {modules.split()[0]}` loaded nothing" in refused.stderr
