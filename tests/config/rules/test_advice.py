"""Drawn wrong settings: what a refusal advises is made, and must be accepted or lead to another, different error.

``ADVICE_SEED=7 ADVICE_DRAWS=5000 pytest tests/config/rules/test_advice.py`` draws others, and more.
"""

from __future__ import annotations

import os
import random
import re
import sys
from typing import Any, get_args

import pytest

from megads.config.derive import attempts, derive
from megads.config.rules.checks import check
from megads.config.sources.parse import parse
from megads.config.sources.resolve import resolve
from megads.config.tree import env_name, fields
from megads.errors import MegadsError
from tests.config.advice import ways

DRAWS = int(os.environ.get("ADVICE_DRAWS", "400"))
SEED = int(os.environ.get("ADVICE_SEED", random.SystemRandom().randrange(10**6)))
# A seed and how many draws of it found wrong advice: it named a part of RAMPUP_BATCH_SIZE as if it were a variable.
FOUND = (346358, 200)
SECTIONS = ("model", "parallel", "recompute", "deepspeed", "train", "optim", "lr_finder", "stability", "checkpoint")
# Words, paths and lists, which advice does not change.
TEXTS = {
    "train.rampup_batch_size": ("8 8 100", "2 2 64", "3 1 50", "16 16 9"),
    "train.skip_iterations": ("1-50", "2-3", "1-4 7-100"),
    "parallel.pipeline_split": ("ends", "parameters", "1,1", "2,1", "1,1,1"),
}
INTS = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "12", "16", "33", "64", "100", "130", "1000")
FLOATS = ("0", "1e-6", "1e-4", "2e-3", "0.05", "0.3", "0.6", "0.97", "1", "30")
BASES = (("tiny", "generic"), ("tiny", "cpu"), ("7B", "cpu"), ("gpt-345M", "generic"))


def _texts(name: str, field: Any) -> tuple[str, ...]:
    choices = get_args(field.annotation)
    if choices:
        return tuple(str(each) for each in choices)
    kinds = {bool: ("0", "1"), int: INTS, float: FLOATS}
    return kinds.get(field.annotation, TEXTS.get(name, ()))


def _pool() -> dict[str, tuple[str, tuple[str, ...]]]:
    found = {}
    for name, field in fields().items():
        if name.partition(".")[0] in SECTIONS or name == "launch.ranks_per_host":
            texts = tuple(text for text in _texts(name, field) if _is_value(text, field))
            if texts:
                found[env_name(name)] = (name, texts)
    return found


def _is_value(text: str, field: Any) -> bool:
    try:
        parse(text, field)
    except ValueError:
        return False
    return True


def refusal_of(base: tuple[str, str], ranks: int, env: dict[str, str]) -> str:
    """Return the line that refuses the settings on ``ranks`` ranks of one host, empty if they are accepted."""
    try:
        resolved = resolve(base[0], env=env, machine=base[1])
        count = resolved.run.launch.ranks_per_host or ranks

        def ranks_of(run: Any) -> tuple[int, int]:
            return 1, run.launch.ranks_per_host or ranks

        derived = derive(resolved, num_hosts=1, ranks_per_host=count, vocab_size=1000, ranks_of=ranks_of)
        check(derived.run, count, attempts(resolved, ranks_of, 1000))
    except MegadsError as error:
        return str(error)
    return ""


def _kind(message: str) -> str:
    """Return what is wrong without the numbers of it."""
    return re.sub(r"=\S+|[\d.]+(e[+-]?\d+)?|-", "#", message.split("; ")[0])


def _ends(base: tuple[str, str], ranks: int, env: dict[str, str], message: str, before: list[str], steps: int) -> bool:
    """Return whether the settings are accepted, or are after following the advice of errors that are new each time."""
    if not message:
        return True
    if not steps or _kind(message) in before:
        return False
    offered = [way for way in ways(message) if way.variables]
    # What only words can put right is for a person.
    return not offered or any(
        _ends(base, ranks, changed, refusal_of(base, ranks, changed), [*before, _kind(message)], steps - 1)
        for changed in ({**env, **way.variables} for way in offered)
    )


# The ids are the same in every worker, whatever each of them draws.
@pytest.mark.parametrize(("seed", "draws"), [(SEED, DRAWS), FOUND], ids=["drawn", "found"])
def test_advice_that_is_drawn_is_accepted_or_leads_on(seed, draws):
    sys.stdout.write(f"ADVICE_SEED={seed} ADVICE_DRAWS={draws}\n")
    draw, pool = random.Random(seed), _pool()
    refused = advised = led_on = 0
    wrong = []
    for _ in range(draws):
        base, ranks = draw.choice(BASES), draw.choice((1, 2, 4, 6, 8))
        names = draw.sample(sorted(pool), draw.choice((1, 1, 2, 2, 3)))
        env = {name: draw.choice(pool[name][1]) for name in names}
        message = refusal_of(base, ranks, env)
        refused += bool(message)
        for way in ways(message) if message else ():
            if not way.variables:
                continue
            advised += 1
            chosen = {**env, **way.variables}
            after = refusal_of(base, ranks, chosen)
            led_on += bool(after)
            # Each setting that was drawn may be wrong in its own way.
            if not _ends(base, ranks, chosen, after, [_kind(message)], len(names) + 1):
                wrong.append(f"{base} on {ranks}: {env}: {message} -> {way.variables}: {after}")
    sys.stdout.write(f"{refused} refused, {advised} pieces of advice, {led_on} led to another error\n")
    assert not wrong, f"ADVICE_SEED={seed}\n" + "\n".join(wrong)
    assert refused > draws // 20
    assert advised > draws // 20
