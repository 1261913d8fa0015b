"""Groups: connected documents, numbered as Megatron-LM numbers them."""

from __future__ import annotations

import random

import pytest

from megads.data.corpus.duplicates.groups import Groups


def by_sets(lines: list[dict[str, list[dict[str, float]]]], threshold: float) -> dict[int, set[str]]:
    """Return the groups by sets that are joined, as a reader would do it on paper."""
    index: dict[str, int] = {}
    groups: list[set[str]] = []
    for line in lines:
        names = []
        for main, others in line.items():
            names.append(main)
            names += [name for each in others for name, value in each.items() if value >= threshold]
        known = [index[name] for name in names if name in index]
        if not known:
            groups.append(set())
        at = known[0] if known else len(groups) - 1
        for other in set(known) - {at}:
            groups[at] |= groups[other]
            groups[other] = set()
        groups[at] |= set(names)
        index.update(dict.fromkeys(groups[at], at))
    return {number: names for number, names in enumerate(groups) if len(names) > 1}


@pytest.mark.parametrize("seed", range(6))
def test_groups_are_those_of_joined_sets(seed):
    draw = random.Random(seed)
    names = [f"u{number}" for number in range(40)]
    lines = [
        {
            draw.choice(names): [{draw.choice(names): draw.random()} for _ in range(draw.randint(0, 3))]
            for _ in range(draw.choice([1, 1, 1, 2]))
        }
        for _ in range(draw.randint(0, 30))
    ]
    groups = Groups(0.6)
    for line in lines:
        groups.add(line)
    found = {number: set(names) for number, names in groups.found()}
    assert found == by_sets(lines, 0.6)
    assert all(len(set(names)) == len(names) for _, names in groups.found())


def test_the_threshold_itself_counts_and_the_first_name_stays_first():
    groups = Groups(0.7)
    groups.add({"b": [{"c": 0.7}, {"d": 0.6999}]})
    groups.add({})
    groups.add({"a": [{"c": 0.9}]})
    assert list(groups.found()) == [(0, ["b", "c", "a"])]
