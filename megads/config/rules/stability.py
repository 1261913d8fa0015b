"""Rules of what is done when numbers go wrong, and of runs that repeat bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

from megads.config.rules.advice import Change, Problem
from megads.config.schema import RunConfig
from megads.config.tree import env_name, value_of

SPIKE, NAN = "stability.on_spike", "stability.on_nan"
ATTENTION, DETERMINISTIC = "model.attention", "stability.deterministic"


def rollback(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that there will be a whole checkpoint to go back to."""
    names = [name for name in (SPIKE, NAN) if value_of(run, name) == "rollback"]
    given = " ".join(f"{env_name(name)}=rollback" for name in names)
    skip: Change = dict.fromkeys(names, "skip")
    if names and not run.checkpoint.save_interval:
        text = f"{given} rolls back to the last checkpoint, and SAVE_INTERVAL=0 saves none before the end"
        yield Problem(text, [{"checkpoint.save_interval": 50}, skip])
    if names and not run.checkpoint.save_optim:
        text = f"{given} resumes from a checkpoint, and NO_SAVE_OPTIM=1 saves no optimizer state"
        yield Problem(text, [{"checkpoint.save_optim": True}, skip])


def deterministic(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Refuse what adds numbers in an order that depends on timing."""
    if run.stability.deterministic and run.model.attention == "flash":
        text = "DETERMINISTIC=1 and ATTENTION=flash: flash-attn sums gradients in no fixed order"
        yield Problem(text, [{ATTENTION: "sdpa"}, {DETERMINISTIC: False}])


RULES = (rollback, deterministic)
