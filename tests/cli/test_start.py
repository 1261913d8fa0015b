"""What a person sees first, and how soon."""

import os
import subprocess
import sys

import pytest

from tests.cli.test_plot import megads

HEAVY = ("torch", "deepspeed", "numpy", "transformers", "matplotlib", "pydantic")


def run(*words, **options):
    return subprocess.run([sys.executable, "-m", "megads", *words], capture_output=True, text=True, **options)


def test_help_lists_the_commands():
    done = run("--help")
    assert done.returncode == 0
    for command in ("train", "config", "stop", "worker"):
        assert command in done.stdout
    assert "health" not in done.stdout


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_help_imports_nothing_heavy(words):
    code = (
        f"import sys; sys.argv = ['megads', *{words!r}]\n"
        "try:\n    import megads.__main__\nfinally:\n    print(sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = done.stdout
    for name in HEAVY:
        assert f"'{name}'" not in loaded


def test_everything_before_the_ranks_imports_no_torch():
    modules = "megads.cli.train, megads.cli.config, megads.cli.runs, megads.launch.plan_run, megads.data.check"
    code = f"import sys, {modules}; print([m for m in ('torch', 'deepspeed') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_dry_run_loads_nothing_that_only_starts_processes():
    code = "import sys, megads.cli.train, megads.launch.request, megads.launch.plan_run, megads.data.check\n"
    code += "print([m for m in ('multiprocessing', 'psutil') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_unknown_command_is_named(tmp_path):
    done = megads("trian", folder=tmp_path)
    assert done.returncode == 2
    assert "trian" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_option_is_one_line():
    done = run("--foo")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "megads: No such option '--foo'; `megads --help` lists what there is\n"


def test_stop_without_a_run_is_one_line(tmp_path):
    done = megads("stop", str(tmp_path), folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"megads: {tmp_path}: no run here")


def test_a_full_disk_behind_the_output_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "megads", "train", "--preset", "tiny", "--dry-run"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "MACHINE": "cpu"},
        )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "megads: output: No space left on device; free some space"
