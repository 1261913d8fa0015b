"""What would help a plan: a larger batch, where the ranks wait for too few samples."""

from __future__ import annotations

import re

from megads.cli.plan.advice import advice_lines
from megads.config.sources.resolve import resolve
from megads.plan.places.place import place_of
from megads.plan.search.search import search


def _advice(hosts, **env):
    resolved = resolve("7B", env={**env, "NHOSTS": str(hosts)}, machine="generic", num_hosts=hosts)
    return list(advice_lines(search(resolved, place_of("h100"), hosts, top=1)))


def test_a_batch_too_small_for_the_ranks_gets_a_larger_one():
    (line,) = _advice(64, GLOBAL_BATCH="32", SP="1")
    assert line.startswith("advice   the batch is small for 512 ranks: GLOBAL_BATCH=512, 2.1M tokens per step, would ")
    match = re.search(r"would reach ([0-9]+)% MFU instead of ([0-9]+)%", line)
    assert int(match[1]) > 1.1 * int(match[2])


def test_no_advice_where_a_batch_is_enough_or_follows_from_the_layout():
    assert not _advice(1, GLOBAL_BATCH="64")
    assert not _advice(64, GRAD_ACC_STEPS="1", TP="8", PP="8")
