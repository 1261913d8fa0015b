import logging

import pytest

from megads.monitor.log import LOG, start_log


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
