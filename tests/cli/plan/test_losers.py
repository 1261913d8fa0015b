"""The lines of layouts that lose."""

from __future__ import annotations

from megads.cli.plan.losers import loser_lines
from megads.config.sources.resolve import resolve
from megads.plan.places.place import place_of
from megads.plan.search.search import search


def test_a_loser_shows_what_differs_from_the_best_and_a_line_is_short():
    resolved = resolve("7B", env={"NHOSTS": "2"}, machine="generic", num_hosts=2)
    found = search(resolved, place_of("h100"), 2)
    lines = list(loser_lines(found))
    best = {f"{name}={value}" for name, value in found.best[0].settings.items()}
    slower = lines[2 : lines.index("", 2)]
    assert lines[:1] == [""]
    assert lines[1].startswith("slower than those above")
    assert len(slower) == 5  # four and how many more
    for line in slower[:-1]:
        settings = line.split(":")[0].split()
        assert settings
        assert not best & set(settings)
    assert max(map(len, lines)) <= 150
