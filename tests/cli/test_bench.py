"""`megads bench`: what is refused, files that are kept, and the command on one rank and on several."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from megads.bench.results import PartResult, Report
from megads.cli import main
from megads.cli.bench import Files, Terminal
from megads.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--parts speed", "--parts speed: 'speed' is not one of numbers, attention"),
        ("--json no/where.json", "--json no/where.json: its folder does not exist"),
        ("--report no/where.md", "--report no/where.md: its folder does not exist"),
        ("--minutes 0", "0.0 is not in the range"),
        ("-n 0", "0 is not in the range"),
    ],
)
def test_what_is_refused(words, message):
    done = CliRunner().invoke(main, ["bench", *words.split()])
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


def test_a_page_is_appended_to_and_written_again_after_each_part(tmp_path):
    page, numbers = tmp_path / "gpu.md", tmp_path / "a.json"
    page.write_text("# Page\n\n## Reports\n\nNone yet.\n")
    files = Files(str(numbers), str(page))
    report = Report({"device": "X", "date": "2026-11-23T00:00:00Z"})
    for name in ("a", "b"):
        report.parts.append(PartResult(name, name, {}, status="done"))
        files.write(report)
    report.is_complete = True
    files.write(report)
    text = page.read_text()
    assert text.startswith("# Page\n\n## Reports\n\n### X, 2026-11-23\n\nok: 2 parts.\n")
    assert (text.count("### X"), text.count("**a**"), text.count("**b**")) == (1, 1, 1)
    assert json.loads(numbers.read_text())["complete"] is True
    Files(None, str(page)).write(report)
    assert page.read_text().count("### X") == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.json", "gpu.md"]


def test_a_page_that_cannot_be_read_is_refused_before_anything_is_measured(tmp_path):
    (tmp_path / "a.md").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"--report .*a.md: cannot be read"):
        Files(None, str(tmp_path / "a.md"))


def test_progress_is_a_line_now_and_then(tmp_path, capsys):
    terminal = Terminal(Files(None, None), 600.0)
    for _ in range(3):
        terminal.progress("numbers: matmul in bf16", 0.25)
    err = capsys.readouterr().err
    assert err == "megads: bench: numbers: matmul in bf16 (25% of the time used, ETA at most 10m00s)\n"
