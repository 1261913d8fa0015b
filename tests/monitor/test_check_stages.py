import threading
import time

import pytest

from megads.errors import LaunchError
from megads.monitor.check_stages import Finding, StageRunner, Verdict, finding_of, spans, summary, which_ranks


def test_ranks_are_named_with_their_hosts():
    hosts = ["a", "a", "b", "b"]
    assert which_ranks([0, 1, 3], hosts) == "ranks 0-1 (host a), rank 3 (host b)"
    assert which_ranks([7], hosts) == "rank 7 (host not known)"
    assert spans([0, 1, 2, 4, 6, 7]) == "0-2, 4, 6-7"


def test_of_many_hosts_some_are_named():
    text = which_ranks(range(100), [f"h{rank // 2}" for rank in range(100)])
    assert text.startswith("ranks 0-1 (host h0), ")
    assert text.endswith("ranks 14-15 (host h7), and 84 ranks on 42 more hosts")


def test_a_stage_is_a_line_and_its_details():
    finding = Finding("disk", Verdict("failed", "no space", ("look",), ("a  b",)), 1.234)
    assert finding.lines() == (
        "disk           failed      1.2 s  no space\n               note: look\n               a  b\n"
    )
    assert finding_of(finding.as_dict()).lines() == finding.lines()


def test_the_summary_names_what_failed_and_what_was_not_looked_at():
    def found(stage, status, *notes):
        return Finding(stage, Verdict(status, "", notes), 0.0)

    all_right = [found("a", "ok", "x"), found("b", "skipped")]
    assert summary(all_right) == "all right (1 stages ok; not checked: b; 1 note)"
    assert summary([*all_right, found("c", "failed")]).startswith("WRONG: c (")


def test_a_stage_that_hangs_is_told_with_its_place_and_the_next_one_runs():
    told = []
    examiner = StageRunner(0.3, told.append)
    release = threading.Event()

    def hang():
        release.wait(100)
        return Verdict("ok")

    started = time.monotonic()
    assert examiner.run("disk", hang).status == "failed"
    assert time.monotonic() - started < 60
    assert told[0].verdict.text.startswith("not finished in 0.3 s: at ")
    assert "test_check_stages.py" in told[0].verdict.text
    examiner.limit_s = 60
    assert examiner.run("next", lambda: Verdict("ok")).status == "ok"
    release.set()


def test_an_error_that_is_expected_is_a_failure_and_another_one_a_bug():
    examiner = StageRunner(5, lambda finding: None)

    def refuse():
        raise LaunchError("no")

    assert examiner.run("disk", refuse, catch=(LaunchError,)) == Verdict("failed", "no")
    with pytest.raises(LaunchError):
        examiner.run("disk", refuse)
