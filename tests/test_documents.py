"""Commands of a page: what belongs to one, and that a walk is one shell which ends at the first failure."""

import os
import time

import pytest

from tests.documents import commands, walk

PAGE = """
Text.

```bash
$ name=first
a line of output
$ cat > made.txt <<'END'
$ not a command
END
$ echo one \\
    two
megads train                # without a dollar: not run
```

    $ not in a block of bash
"""


def test_a_command_has_its_continued_lines_and_its_here_document(tmp_path):
    (tmp_path / "page.md").write_text(PAGE)
    made = "cat > made.txt <<'END'\n$ not a command\nEND"
    assert commands(tmp_path / "page.md") == ["name=first", made, "echo one \\\n    two"]


def test_a_walk_is_one_shell_with_its_variables_folders_and_background(tmp_path):
    (folder := tmp_path / "walk").mkdir()
    lines = ["name=first", "mkdir sub; cd sub", "sleep 600 & echo kept", "kill $!; wait $!; echo $? $name ${PWD##*/}"]
    steps = walk([*lines, "echo --port 5000 http://x:5000/v1 50001"], folder, os.environ, 60)
    assert [step.output for step in steps][:4] == ["", "", "kept\n", "143 first sub\n"]
    port = steps[4].output.split()[1]
    assert steps[4].output == f"--port {port} http://x:{port}/v1 50001\n"
    assert port != "5000"
    assert [step.command for step in steps][:4] == lines
    assert all(0 <= step.seconds < 60 for step in steps)


def test_a_walk_ends_at_the_first_failure_and_leaves_nothing_running(tmp_path):
    (folder := tmp_path / "walk").mkdir()
    lines = ["sleep 600 & echo $! > pid", "echo wrong >&2; (exit 3)", "touch reached"]
    with pytest.raises(AssertionError, match=r"(?s)exit code 3\n\$ echo wrong >&2; \(exit 3\)\nwrong\n"):
        walk(lines, folder, os.environ, 60)
    assert not (folder / "reached").exists()
    _ended(int((folder / "pid").read_text()))


def test_a_walk_that_takes_too_long_names_its_command(tmp_path):
    (folder := tmp_path / "walk").mkdir()
    with pytest.raises(AssertionError, match=r"not over 2 s after the first command began\n\$ sleep 600\n"):
        walk(["sleep 600", "true"], folder, os.environ, 2)


def _ended(pid: int) -> None:
    deadline = time.monotonic() + 300
    while _state(pid) not in ("", "Z"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(") ")[2][:1]
    except (FileNotFoundError, ProcessLookupError):
        return ""
