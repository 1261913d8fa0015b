"""Which link of a chain a start is, and what changed since the last one."""

from dataclasses import replace

import orjson

from megads.config.schema import RunConfig
from megads.monitor.run_state.attempts import Attempt, append_attempt
from megads.monitor.run_state.links import link_line, link_row, number_of_links
from megads.monitor.trackers.registry import open_trackers

FIRST = Attempt("1.pbs", 0, 1000.0, hosts=("a",), num_ranks=4, layout="TP 1 PP 1 SP 1 DP 4 ZERO 1", grad_acc_steps=2)
WIDER = replace(
    FIRST, job="2.pbs", started=2000.0, hosts=("a", "b"), num_ranks=8, layout="TP 1 PP 1 SP 1 DP 8 ZERO 1",
    grad_acc_steps=1,
)  # fmt: skip


def test_the_line_says_what_changed_since_the_link_before():
    assert link_line([], FIRST) == ""
    again = replace(FIRST, started=1500.0)
    assert link_line([FIRST], again) == "2: 4 ranks on 1 host, as before"
    assert link_line([FIRST, again], WIDER) == ("3: 8 ranks on 2 hosts, was 4 on 1; DP 4 -> 8; accumulation 2 -> 1")
    other = replace(FIRST, started=3000.0, layout="TP 2 PP 1 SP 1 DP 2 ZERO 1", grad_acc_steps=4)
    assert link_line([FIRST], other) == ("2: 4 ranks on 1 host; TP 1 -> 2; DP 4 -> 2; accumulation 2 -> 4")


def test_a_restart_within_a_job_is_of_its_link():
    restarted = replace(FIRST, attempt=1, started=1500.0)
    assert number_of_links([FIRST, restarted]) == 1
    assert link_line([FIRST, restarted], WIDER).startswith("2: ")
    assert link_line([FIRST], replace(restarted, num_ranks=2)).startswith("1: 2 ranks on 1 host, was 4 on 1")


def test_metrics_have_a_row_of_a_start_on_other_ranks_only(tmp_path):
    append_attempt(tmp_path, replace(FIRST, ended=1100.0))
    assert link_row(tmp_path, 0) is None
    append_attempt(tmp_path, replace(FIRST, started=1500.0, ended=1600.0))
    assert link_row(tmp_path, 5) is None
    append_attempt(tmp_path, WIDER)
    open_trackers(RunConfig(), tmp_path, {}, iteration=5, samples=0, world_size=8).close()
    rows = [orjson.loads(line) for line in (tmp_path / "metrics.jsonl").read_bytes().splitlines()]
    assert [{key: value for key, value in row.items() if key != "crc32"} for row in rows] == [
        {
            "iteration": 5, "link": 3, "num_ranks": 8, "num_hosts": 2, "layout": "TP 1 PP 1 SP 1 DP 8 ZERO 1",
            "grad_acc_steps": 1,
        }
    ]  # fmt: skip
