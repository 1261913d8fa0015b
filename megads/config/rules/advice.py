"""What would work instead: changes that are tried before they are named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from megads.config.schema import RunConfig
from megads.config.setting import Origin
from megads.config.sources.parse import LARGEST
from megads.config.tree import env_name, extra, fields, nested
from megads.errors import ConfigError
from megads.text.plural import listed

Change = Mapping[str, Any]
"""New values by dotted name."""

MOST_TRIED = 400
MOST_FOLLOWED, MOST_FURTHER = 30, 8  # changes after which a second rule is broken, and ways out of that
MOST_PER_SETTING = 2  # changes of the same settings that one line names
LARGEST_ADVICE = 4096  # no advice is better with a number beyond this, and a slip of the finger may be 10**15


@dataclass(frozen=True)
class Problem:
    """A rule that a run breaks."""

    text: str  # what cannot be, with the numbers
    ways: Iterable[Change] = ()  # changes that might help, the least harmful first
    otherwise: str = ""  # another way, in words
    rule: str = ""  # its name
    # settings that are overridden by the others when only a default, a preset or a machine said them
    overridable: tuple[str, ...] = ()


class Broken(ConfigError):
    """A rule that is broken before all values are known; ``derive`` adds what would work."""

    def __init__(self, problem: Problem):
        super().__init__(f"{problem.text}; {problem.otherwise}" if problem.otherwise else problem.text)
        self.problem = problem


class Refused(ConfigError):
    """A rule that is broken, in a line with what would work."""

    def __init__(self, text: str, problem: Problem):
        super().__init__(text)
        self.problem = problem


@dataclass(frozen=True)
class Layout:
    """A derived run on its ranks, and the first rule it breaks."""

    run: RunConfig
    world_size: int
    ranks_per_host: int
    problem: Problem | None = None


@dataclass(frozen=True)
class Attempt:
    """Tries changes of what the user gave."""

    # returns the run with a change, derived again; None if it cannot be derived
    derive: Callable[[Change], Layout | None]
    # where the values came from that would change, by dotted name
    origins: Mapping[str, Origin] = field(default_factory=dict)


def put(run: RunConfig, change: Change) -> RunConfig:
    """Return ``run`` with the values of ``change``, which are not checked."""
    update: dict[str, Any] = {}
    for name, value in nested(change).items():
        update[name] = getattr(run, name).model_copy(update=value) if isinstance(value, dict) else value
    return run.model_copy(update=update)


def refusal(problem: Problem, attempt: Attempt, most: int = 3) -> str:
    """Return the line that says what is wrong and what would work.

    Of the ways only those are named with which the run is accepted; when something else is
    wrong as well, those with which this rule no longer is what stops the run.
    """
    ways = list(islice(problem.ways, MOST_TRIED))
    works, helps = _sorted_out(problem, ways, attempt, most)
    if not works:
        # Another layout has other data-parallel ranks, and a batch may not divide by them.
        works, others = _sorted_out(problem, [{**way, "train.micro_batch": 1} for way in ways], attempt, most)
        helps = helps or others
    found = works or _ending(helps, attempt, most)
    named = [shown(way, attempt.origins) for way in found]
    if problem.otherwise:
        named.append(problem.otherwise)
    return f"{problem.text}; {one_of(named)}" if named else problem.text


def _sorted_out(
    problem: Problem, ways: list[Change], attempt: Attempt, most: int
) -> tuple[list[Change], list[tuple[Change, Problem]]]:
    """Return the first of ``ways`` that work, and those that help, each with what is wrong after it."""
    works: list[Change] = []
    helps: list[tuple[Change, Problem]] = []
    for way in ways:
        alike = sum(each.keys() == way.keys() for each in works)
        if alike == MOST_PER_SETTING or any(each.items() <= way.items() for each in works):
            continue
        layout = attempt.derive(way)
        if layout is not None and layout.problem is None:
            works.append(way)
        elif layout is not None and layout.problem is not None and layout.problem.rule != problem.rule:
            helps.append((way, layout.problem))
        if len(works) == most:
            break
    return works, helps


def _ending(helps: list[tuple[Change, Problem]], attempt: Attempt, most: int) -> list[Change]:
    """Return the first changes of ``helps`` after which the run can still be corrected, else the first."""
    ending = (way for way, other in helps[:MOST_FOLLOWED] if _can_end(way, other, attempt))
    return list(islice(ending, most)) or [way for way, _ in helps[:most]]


def _can_end(way: Change, other: Problem, attempt: Attempt) -> bool:
    """Return whether the rule that is broken after ``way`` has a change with which the run is accepted."""
    for further in islice(other.ways, MOST_FURTHER):
        layout = attempt.derive({**way, **further})
        if layout is not None and layout.problem is None:
            return True
    return False


def one_of(named: list[str]) -> str:
    """Return ``use A=1, A=2 or drop --b``."""
    phrases: list[str] = []
    using = False
    for each in named:
        verb = each.split()[0] in ("drop", "give", "leave", "pass", "set")
        phrases.append(each if verb or using else f"use {each}")
        using = not verb
    return listed(phrases, "or")


def shown(change: Change, origins: Mapping[str, Origin]) -> str:
    """Return a change as a user types it, by the names that were used: ``ZERO_STAGE=3 PP=1``."""
    words: list[str] = []
    dropped: list[str] = []
    for name, value in change.items():
        origin = origins.get(name, Origin("default"))
        text, variable = _text(value), env_name(name)
        if origin.layer == "env" and origin.detail in extra(fields()[name], "switches"):
            words.append(f"{origin.detail}=0")
            words += [] if value == fields()[name].default else [f"{variable}={text}"]
        elif origin.layer == "cli" and extra(fields()[name], "flags").get(origin.detail) is not None:
            # An option silently, or with one in other units.
            dropped.append(origin.detail)
            words += [] if value == fields()[name].default else [f"{variable}={text}"]
        else:
            words.append(f"{origin.detail if origin.layer in ('env', 'cli') else variable}={text}")
    drop = f"drop {' '.join(dict.fromkeys(dropped))}" if dropped else ""
    return " and ".join(filter(None, (" ".join(dict.fromkeys(words)), drop)))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def divisors(value: int) -> list[int]:
    """Return the divisors of ``value`` up to ``LARGEST_ADVICE``."""
    return [each for each in range(1, min(value, LARGEST_ADVICE) + 1) if value % each == 0]


def nearest(value: int, candidates: Iterable[int]) -> list[int]:
    """Return ``candidates`` without ``value``, the nearest first, of two the smaller."""
    return sorted({each for each in candidates if each != value}, key=lambda each: (abs(each - value), each))


def multiples(value: int, step: int) -> list[int]:
    """Return the positive multiples of ``step`` below and above ``value``, the nearer first."""
    below = value // step * step
    return nearest(value, (each for each in (below, below + step) if 0 < each <= LARGEST))


def each_of(name: str, values: Iterable[Any], **beside: Any) -> list[Change]:
    """Return a change of the setting ``name`` for each of ``values``."""
    return [{name: value, **beside} for value in values]
