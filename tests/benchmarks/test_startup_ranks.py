"""What ranks do before their first step: nothing that grows with the number of ranks."""

from __future__ import annotations

from benchmarks.startup_ranks import fitted, kinds, measure, row, world_calls


def test_before_the_first_step_no_rank_sends_or_opens_more_because_there_are_more(tmp_path):
    """The list of collectives of all ranks is the same for 2 ranks and for 4, and none of them gathers."""
    two, four = measure(2, tmp_path), measure(4, tmp_path)
    few, many = row(two, tmp_path), row(four, tmp_path)
    assert many["gathered bytes"] == few["gathered bytes"] == 0
    calls = [call for call in world_calls(four[3], 4) if call[0] != "broadcast" or call[1] <= 64]
    assert {name for name, _ in world_calls(four[3], 4)} <= {"broadcast", "all_reduce"}
    assert all(num_bytes <= 64 for _, num_bytes in calls)
    assert len(world_calls(two[1], 2)) >= len(world_calls(four[3], 4)) - 1  # the first run also made the corpus
    assert many["run files"] <= few["run files"]
    assert many["data files"] <= few["data files"]
    assert many["sockets"] <= few["sockets"] + 4  # of a tree; connections to all of them would be 2 x 2 more


def test_files_count_where_they_are(tmp_path):
    opened = [f"{tmp_path}/run4/config.yaml", f"{tmp_path}/cache/a.bin", "/usr/lib/x.py", "/proc/self/io", "/dev/null"]
    assert kinds(opened, tmp_path) == {"run": 1, "data": 1, "other": 1}


def test_the_model_is_a_line_over_the_logarithm_but_for_what_rank_0_has():
    rows = {16: {"sockets": 6.0, "sockets of rank 0": 20.0}, 64: {"sockets": 8.0, "sockets of rank 0": 68.0}}
    assert fitted(rows, "sockets", 1024) == 12
    assert fitted(rows, "sockets of rank 0", 1024) == 1028
    assert fitted({16: {"sockets": 6.0}}, "sockets", 1024) == 6
