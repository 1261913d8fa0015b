"""Who writes which lines where; colours on a terminal only, and the text without them is the same."""

import io
import logging
import re

import pytest

from megads.monitor.log import LOG, coloured, may_colour, start_log


@pytest.fixture(autouse=True)
def _log_as_it_was():
    kept = LOG.handlers, LOG.propagate, LOG.level
    yield
    for handler in LOG.handlers:
        handler.close()
    LOG.handlers, LOG.propagate = kept[0], kept[1]
    LOG.setLevel(kept[2])


def test_rank_0_speaks_in_bare_lines_and_keeps_a_copy(tmp_path, capsys):
    start_log(0, "info", tmp_path / "run.log").info("step %d", 3)
    assert capsys.readouterr().err == "step 3\n"
    assert (tmp_path / "run.log").read_text().endswith(" step 3\n")


def test_other_ranks_only_warn_and_say_who_they_are(tmp_path, capsys):
    log = start_log(2, "info", tmp_path / "run.log")
    log.info("step 3")
    log.warning("odd")
    assert capsys.readouterr().err.startswith("[rank 2 host ")
    assert not (tmp_path / "run.log").exists()


def test_a_full_disk_ends_the_copy_and_not_the_run(tmp_path, capsys):
    (tmp_path / "run.log").symlink_to("/dev/full")
    log = start_log(0, "info", tmp_path / "run.log")
    log.info("first")
    log.info("second")
    err = capsys.readouterr().err
    assert "first\n" in err
    assert "second\n" in err
    assert err.count("no longer written: [Errno 28]") == 1
    assert logging.raiseExceptions


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "env", "expected"),
    [
        (Terminal(), {}, True),
        (io.StringIO(), {}, False),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
    ],
)
def test_only_terminals_whose_user_has_not_said_no(monkeypatch, stream, env, expected):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert may_colour(stream) is expected


@pytest.mark.parametrize(
    "text",
    [
        "run      7B in runs/7B\nlayout   2 ranks",
        "step  7/200 | loss  5.4321 | lr 2.00e-04 | SKIPPED, gradient is NaN or Inf",
        "megads: a note",
        "sentences of any length",
    ],
)
def test_without_its_codes_a_line_is_what_it_was(text):
    shown = coloured(text)
    assert re.sub(r"\x1b\[\d*m", "", shown) == text
    assert ("\x1b" in shown) == ("sentences" not in text)
