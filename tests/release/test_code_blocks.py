"""Every command in a shell block of the documents: run by a test, parsed, or of a program that is listed here."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.release.commands import commands, parse, unknown_names

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "ALCF/README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Program -> why no test of a document runs it.
OUTSIDE = {
    **dict.fromkeys(("qsub", "sbatch", "salloc", "srun", "flux", "bsub", "module"), "of a cluster's scheduler"),
    **dict.fromkeys(("mpiexec", "mpirun", "torchrun", "deepspeed"), "starts ranks; tests/e2e/test_launchers.py does"),
    **dict.fromkeys(("docker", "podman", "podman-hpc", "apptainer", "singularity"), "needs a container runtime"),
    **dict.fromkeys(
        ("enroot", "buildah", "shifter", "shifterimg", "ch-convert", "ch-run"), "needs a container runtime"
    ),
    **dict.fromkeys(("pip", "uv", "python", "python3", "git", "curl"), "installs or fetches, from a network"),
    **dict.fromkeys(("cd", "export", "source", "eval", "printf", "echo", "cat", "ls", "tar", "cp"), "of the shell"),
    "lm_eval": "a program of its own, against a server; tests/evaluate/lm_eval has a client of that server",
    "megads_setup_env": "of ALCF/helpers.sh; tests/shell",
    "bash": "bash tests/run.sh is what runs this test",
}
"""Of ``python -m MODULE`` the module must exist; what megads gets behind one of these is parsed."""


def blocks(text, words="bash|sh|shell"):
    """Return the lines of every shell block; a line that ends with a backslash is joined with the next one."""
    found = re.findall(rf"^```(?:{words})\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [re.sub(r"\\\n\s*", " ", block).splitlines() for block in found]


def not_run(text):
    """Yield the lines of shell blocks that are not run: neither after a prompt nor inside a here-document of one.

    In a block of console, which shows a session, they are those behind a prompt; the others are what was printed.
    """
    for lines in blocks(text, "console"):
        yield from (line[2:] for line in lines if line.startswith("$ "))
    for lines in blocks(text):
        end = None
        for line in lines:
            if end is not None:
                end = None if line.strip() == end else end
            elif line.startswith("$ "):
                here = re.search(r"<<-?\s*['\"]?(\w+)", line)
                end = here[1] if here else None
            elif line.strip() and not line.startswith("#"):
                yield line


def problems(text):
    """Yield what is wrong with the lines that are not run."""
    for line in not_run(text):
        for names, before, words in commands(line):
            yield from (f"{line}: {name} is not a setting" for name in unknown_names(names))
            if words:
                yield from (f"{line}: {wrong}" for wrong in parse(words))
            yield from (f"{line}: {wrong}" for wrong in _other(before))


def _other(words):
    program = Path(words[0]).name if words else ""
    if program in ("python", "python3") and words[1:2] == ["-m"]:
        if words[2:] and importlib.util.find_spec(words[2]) is None:
            yield f"no module {words[2]}"
    elif program and program not in OUTSIDE and not re.fullmatch(r'"?\$\{?\w+.*', program):
        yield f"{program} is not listed in OUTSIDE"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_is_run_or_parsed(page):
    found = list(problems(page.read_text()))
    assert not found, "\n".join(found)


def test_a_page_with_commands_to_run_is_run_by_a_test():
    tests = "\n".join(
        path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path.name != Path(__file__).name
    )
    for page in PAGES:
        if any(line.startswith("$ ") for lines in blocks(page.read_text()) for line in lines):
            assert f'"{page.stem}"' in tests or f"{page.stem}.md" in tests, f"{page.name} is in no test"


def test_many_lines_are_parsed():
    lines = [line for page in PAGES for line in not_run(page.read_text())]
    assert sum("megads" in line or "train_7B.sh" in line for line in lines) > 60


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("megads trian --preset 7B", "no command 'trian'; did you mean train?"),
        ("megads train --num-layres 2", "No such option --num-layres"),
        ("megads train --set train.lr=1", "--set train.lr=1: no such setting"),
        ("TPP=2 bash train_7B.sh --dry-run", "TPP is not a setting"),
        ("bash launchers/train.sh --no-such", "No such option --no-such"),
        ("srun -n 8 megads train --walltime", "--walltime needs a value"),
        ('sbatch -N2 --wrap "megads train --presett 7B"', "No such option --presett"),
        ("megads checkpoint reshape A B --tp two", "'two' is not a valid integer range"),
        ("megads config && megads config --jsn  # megads no-such; x", "No such option --jsn"),
        ("make docs", "make is not listed in OUTSIDE"),
        ("python -m megads.no_such", "no module megads.no_such"),
    ],
)
def test_a_wrong_line_is_found(line, problem):
    (found,) = problems(f"```bash\n{line}\n```\n")
    assert problem in found


def test_what_is_run_is_not_parsed():
    text = "```bash\n$ python3 - <<'END'\nmake docs\nEND\n$ megads train \\\n  --preset 7B\n# megads no-such\n```\n"
    assert list(not_run(text)) == []
    assert list(not_run("```bash\n$ ls\nmake docs\n```\n")) == ["make docs"]
    assert list(problems("```bash\nmegads --version\nmegads train --help\n```\n")) == []
    assert list(not_run("```console\n$ megads --version\nmegads 0.1.0\n```\n")) == ["megads --version"]
