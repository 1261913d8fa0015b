"""CPU cores of local ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.config.machine_facts import Facts
from megads.config.sources.presets import read_machine
from megads.errors import ConfigError
from megads.launch.launchers.cpu_bind import core_lists, parse_cores, show_cores

ROOT = Path(__file__).parents[3]


def bound(machine: str, ranks: int) -> str:
    return ":".join(core_lists(read_machine(machine, ROOT).facts, ranks))


@pytest.mark.parametrize(
    ("machine", "ranks", "expected"),
    [
        ("aurora", 12, "4-7:8-11:12-15:16-19:20-23:24-27:56-59:60-63:64-67:68-71:72-75:76-79"),
        ("sunspot", 12, "4-7:8-11:12-15:16-19:20-23:24-27:56-59:60-63:64-67:68-71:72-75:76-79"),
        ("aurora", 6, "4-11:12-19:20-27:56-63:64-71:72-79"),
        ("aurora", 2, "4-27:56-79"),
        ("aurora", 1, "4-27,56-79"),
        ("aurora", 5, "4-11:12-19:20-27:56-67:68-79"),
        ("polaris", 4, "24-31:16-23:8-15:0-7"),
        ("polaris", 2, "16-31:0-15"),
        ("polaris", 8, "24-27:28-31:16-19:20-23:8-11:12-15:0-3:4-7"),
        ("perlmutter", 4, "48-63:32-47:16-31:0-15"),
        ("frontier", 8, "1-7:9-15:17-23:25-31:33-39:41-47:49-55:57-63"),
        ("frontier", 4, "1-7,9-15:17-23,25-31:33-39,41-47:49-55,57-63"),
        ("sophia", 8, ""),
        ("cpu", 2, ""),
    ],
)
def test_machines(machine, ranks, expected):
    assert bound(machine, ranks) == expected


@pytest.mark.parametrize("machine", ["aurora", "polaris", "perlmutter", "frontier"])
@pytest.mark.parametrize("ranks", [*range(1, 17), 24, 48])
def test_no_core_is_reserved_or_given_twice_and_no_rank_crosses_parts(machine, ranks):
    facts = read_machine(machine, ROOT).facts
    lists = [set(parse_cores(text)) for text in core_lists(facts, ranks)]
    parts = [set(parse_cores(text)) for text in facts.cores]
    assert len(lists) == ranks
    assert all(lists)
    given = [core for cores in lists for core in cores]
    assert not set(given) & set(parse_cores(facts.reserved_cores))
    if ranks <= 32:
        assert len(given) == len(set(given))
    if ranks >= len(parts):
        assert all(any(cores <= part for part in parts) for cores in lists)


def test_more_ranks_than_cores_share_them():
    assert core_lists(Facts(cores="0-1 2-3"), 6) == ("0", "1", "0", "2", "3", "2")


def test_numbers_come_back():
    assert show_cores(parse_cores("0-3,8,10-11")) == "0-3,8,10-11"


@pytest.mark.parametrize("text", ["a", "3-1", "1-", "0:3"])
def test_wrong_lists(text):
    with pytest.raises(ConfigError, match="cores"):
        core_lists(Facts(cores=[text]), 1)
