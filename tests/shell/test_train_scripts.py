"""train_7B.sh and launchers/train.sh: found from anywhere, and thin."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from megads.config.schema import RunConfig
from megads.config.setting import Section

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    ROOT / "train_7B.sh",
    *(path for name in ("launchers", "ALCF", "envs") for path in ROOT.glob(f"{name}/*.sh")),
]


def setting_names(section: type[Section] = RunConfig) -> set[str]:
    names: set[str] = set()
    for field in section.model_fields.values():
        extra = field.json_schema_extra
        if isinstance(extra, dict):
            names |= {extra["env"], *extra["switches"], *extra["aliases"]}
        else:
            names |= setting_names(type(field.default))
    return names - {""}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shell_scripts_hold_no_setting_defaults(script):
    text = re.sub(r"^\s*#.*", "", script.read_text(), flags=re.MULTILINE)
    names = setting_names()
    assert {"TP", "NLAYERS", "MACHINE", "HOSTFILE", "NO_FLASH_ATTN", "NUM_LAYERS"} <= names
    given = {match[1] for match in re.finditer(r"\$\{(\w+):?[-=]([^}]+)\}", text)}
    given |= {match[1] for match in re.finditer(r"(?:^|[\s;&|(])(\w+)\+?=", text)}
    # The one setting that only a shell can find before there is a Python.
    assert not given & (names - ({"MACHINE"} if script.name == "helpers.sh" else set()))


def test_from_any_folder_with_the_options_and_the_environment(bash, checkout, stub, tmp_path):
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    done = bash(checkout / "train_7B.sh", "--set", "a=b c", cwd=elsewhere, MEGADS_PYTHON=stub, TP="2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"python={stub}",
        f"cwd={elsewhere}",
        "machine=cpu",
        f"path={checkout}",
        "TP=2",
        *("-m", "megads", "train", "--preset", "7B", "--set", "a=b c"),
    ]
    assert done.stderr == ""


def test_relative_symbolic_and_sourced_paths(bash, checkout, stub, tmp_path):
    (tmp_path / "link.sh").symlink_to(checkout / "train_7B.sh")
    for words, cwd in (
        (["train_7B.sh"], checkout),
        (["../train_7B.sh"], checkout / "envs"),
        (["link.sh"], tmp_path),
        (["launchers/train.sh", "--preset", "7B"], checkout),
        (["-c", 'exec "../check out/train_7B.sh"'], checkout),
    ):
        done = bash(*words, cwd=cwd, MEGADS_PYTHON=stub)
        assert f"path={checkout}\n" in done.stdout, done.stderr
        assert done.stdout.endswith("--preset\n7B\n")


@pytest.mark.parametrize("script", ["train_7B.sh", "launchers/train.sh"])
@pytest.mark.parametrize("variable", ["PBS_O_WORKDIR", "SLURM_SUBMIT_DIR", "MEGADS_ROOT"])
def test_a_copy_in_a_spool_folder_finds_the_checkout(bash, checkout, stub, tmp_path, script, variable):
    spool = tmp_path / "spool" / "7.pbs.SC"
    spool.parent.mkdir()
    shutil.copy(checkout / script, spool)
    done = bash(spool, MEGADS_PYTHON=stub, **{variable: checkout})
    assert f"path={checkout}\n" in done.stdout, done.stderr
    assert f"cwd={tmp_path}\n" in done.stdout


@pytest.mark.parametrize("script", ["train_7B.sh", "launchers/train.sh"])
def test_a_copy_made_by_sbatch_of_a_file_elsewhere_finds_the_checkout(bash, checkout, stub, tmp_path, script):
    spool = tmp_path / "spool" / "slurm_script"
    spool.parent.mkdir()
    shutil.copy(checkout / script, spool)
    scontrol = stub.parent / "scontrol"
    scontrol.write_text(f'#!/bin/bash\n[[ "$*" == "show job 7" ]] && echo "   Command={checkout / script}"\n')
    scontrol.chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": tmp_path, "MEGADS_PYTHON": stub}
    done = bash(spool, **job)
    assert f"path={checkout}\n" in done.stdout, done.stderr
    scontrol.write_text("#!/bin/bash\nexit 1\n")
    assert "set MEGADS_ROOT" in bash(spool, **job).stderr
    assert f"path={checkout}\n" in bash(spool, cwd=checkout, **job).stdout


@pytest.mark.parametrize("script", ["train_7B.sh", "launchers/train.sh"])
def test_the_command_that_is_logged_names_no_spool_file(bash, checkout, tmp_path, script):
    shutil.copy(checkout / script, tmp_path / "7.pbs.SC")
    program = tmp_path / "show"
    program.write_text('#!/bin/bash\necho "${MEGADS_COMMAND}"\n')
    program.chmod(0o755)
    done = bash(tmp_path / "7.pbs.SC", "--set", "a=b c", MEGADS_PYTHON=program, PBS_O_WORKDIR=checkout)
    name = str(checkout / script).replace(" ", "\\ ")
    assert done.stdout == f"bash {name} --set a=b\\ c\n", done.stderr
    done = bash(checkout / script, MEGADS_PYTHON=program)
    assert done.stdout == f"bash {name}\n"


def test_a_pbs_batch_job_runs_where_qsub_was_called(bash, checkout, stub, tmp_path):
    pbs = {"PBS_ENVIRONMENT": "PBS_BATCH", "PBS_O_WORKDIR": checkout}
    done = bash(checkout / "train_7B.sh", cwd=tmp_path, MEGADS_PYTHON=stub, **pbs)
    assert f"cwd={checkout}\n" in done.stdout
    done = bash(
        checkout / "train_7B.sh", cwd=tmp_path, MEGADS_PYTHON=stub, **pbs | {"PBS_ENVIRONMENT": "PBS_INTERACTIVE"}
    )
    assert f"cwd={tmp_path}\n" in done.stdout


@pytest.mark.parametrize("script", ["train_7B.sh", "launchers/train.sh"])
def test_a_copy_without_checkout_says_what_to_set(bash, checkout, tmp_path, script):
    shutil.copy(checkout / script, tmp_path / "copy.sh")
    done = bash(tmp_path / "copy.sh")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "set MEGADS_ROOT" in done.stderr


def test_unknown_machine_is_one_line_with_the_known_ones(bash, checkout, stub):
    done = bash(checkout / "train_7B.sh", MEGADS_PYTHON=stub, MACHINE="cpx")
    assert (done.returncode, done.stdout) == (2, "")
    known = sorted(path.stem for path in (checkout / "envs").glob("*.yaml"))
    assert {"aurora", "cpu", "generic", "pbs", "slurm"} <= set(known)
    assert done.stderr == f"megads: MACHINE=cpx is not known; known machines: {', '.join(known)}\n"


def test_any_function_can_be_replaced(bash, checkout, stub):
    script = """
        megads_find_machine() { machine=generic; }
        megads_find_python() { MEGADS_PYTHON=/mine; }
        source "$0/ALCF/helpers.sh"; megads_setup_env; echo "${MACHINE} ${MEGADS_PYTHON}"
    """
    assert bash("-c", script, checkout, MACHINE="").stdout == "generic /mine\n"


def test_functions_are_all_defined_only_if_absent():
    for script in SCRIPTS:
        for line in script.read_text().splitlines():
            if match := re.search(r"(megads_\w+)\(\) \{", line):
                assert line.startswith(f"declare -F {match[1]} >/dev/null || ")


def test_a_module_name_in_the_working_folder_does_no_harm(bash, checkout, tmp_path):
    (tmp_path / "megads").mkdir()
    (tmp_path / "megads" / "__init__.py").write_text("raise SystemExit('the wrong megads')")
    package = checkout / "megads"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import sys; print(sys.argv[1:])")
    python = shutil.which("python3")
    version = subprocess.run([python, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True)
    if version.stdout.strip() != b"True":
        pytest.skip("PYTHONSAFEPATH came with Python 3.11")
    done = bash(checkout / "train_7B.sh", cwd=tmp_path, MEGADS_PYTHON=python)
    assert done.stdout == "['train', '--preset', '7B']\n", done.stderr
