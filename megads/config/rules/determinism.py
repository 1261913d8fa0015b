"""What a run that repeats bit for bit needs of the environment of its ranks. No torch.

Values and what is accepted instead of them are Megatron-LM's (``--deterministic-mode``): a
ring adds in the same order every time, and cuBLAS with a workspace of its own per stream
always takes the same algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping

from megads.config.schema import RunConfig
from megads.errors import ConfigError

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
