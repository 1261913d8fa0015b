"""Rules of what is done when numbers go wrong, and of runs that repeat bit for bit. No torch.

What a run that repeats needs of the environment of its ranks, and what is accepted instead, are Megatron-LM's
(``--deterministic-mode``): a ring adds in the same order every time, and cuBLAS with a workspace of its own per
stream always takes the same algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from megads.config.rules.advice import Change, Problem
from megads.config.schema import RunConfig
from megads.config.tree import env_name, value_of
from megads.errors import ConfigError

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

VARIABLES: Mapping[str, tuple[str, ...]] = {
    "NCCL_ALGO": ("Ring", "CollnetDirect", "CollnetChain", "^NVLS"),
    "CUBLAS_WORKSPACE_CONFIG": (":4096:8", ":16:8"),
}
"""Variable -> what it may be; the first is what it is when nobody set it."""


def rank_variables(run: RunConfig, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the ranks of ``run`` need besides those of ``env``; none without DETERMINISTIC.

    Raises:
        ConfigError: one of ``env`` makes results depend on timing.
    """
    if not run.stability.deterministic:
        return {}
    for name, allowed in VARIABLES.items():
        given = env.get(name, "")
        wrong = [word for word in given.split(",") if word and word.lower() not in map(str.lower, allowed)]
        if wrong:
            raise ConfigError(
                f"DETERMINISTIC=1 and {name}={given}: its sums may differ from run to run; unset {name}, "
                f"or use {' or '.join(allowed)}"
            )
    return {name: env.get(name) or allowed[0] for name, allowed in VARIABLES.items()}
