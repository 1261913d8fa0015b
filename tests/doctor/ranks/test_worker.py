"""The life of one rank of a check: its options, and who says what went wrong."""

from __future__ import annotations

import pytest

from megads.cluster.ranks import RankInfo
from megads.doctor.ranks.worker import SPEAKERS, _last_words, read_options
from megads.errors import ConfigError, LaunchError


def test_options_that_this_host_does_not_see_are_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"No such file or directory .host .*run megads doctor in a folder that all"):
        read_options(tmp_path / "doctor.json")
    (tmp_path / "doctor.json").write_text('{"limit_s": 3}')
    assert read_options(tmp_path / "doctor.json") == {"limit_s": 3}


@pytest.mark.parametrize(
    ("rank", "local_rank", "error", "words"),
    [
        (1, 1, RuntimeError("no answer\nmore"), "[rank 1 host h] no answer\n"),
        (SPEAKERS, 0, LaunchError("no answer"), ""),
        (SPEAKERS, 0, LaunchError("x does not resolve"), f"[rank {SPEAKERS} host h] x does not resolve\n"),
        (SPEAKERS, 1, ConfigError("doctor.json"), ""),
        (0, 0, RuntimeError(""), "[rank 0 host h] RuntimeError\n"),
    ],
)
def test_of_what_all_ranks_would_say_some_ranks_or_one_of_each_host_say_it(rank, local_rank, error, words):
    assert _last_words(error, RankInfo(rank, 100, local_rank, 4, "test"), "h") == words
