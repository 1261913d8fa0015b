"""What a machine is, apart from settings: the ``facts`` of ``envs/<machine>.yaml``.

No module knows a machine's name; everything that differs between machines is a field here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from megads.config.setting import Section
from megads.errors import ConfigError

SchedulerName = Literal["none", "pbs", "slurm", "flux", "lsf"]
StarterName = Literal["direct", "torchrun", "openmpi", "mpich", "pals", "srun", "flux", "jsrun", "deepspeed"]

Words = Annotated[tuple[str, ...], BeforeValidator(lambda value: value.split() if isinstance(value, str) else value)]
"""A list of words; one string is split at blanks."""


class SubmitFacts(Section):
    """What a job script of this machine says besides nodes, time and account."""

    queue: str = Field("", description="queue (PBS), partition or QOS (SLURM) when the user names none")
    filesystems: str = Field("", description="PBS: file systems the job needs, as home:flare")
    constraint: str = Field("", description="SLURM: -C")
    directives: Words = Field((), description="further options of qsub or sbatch, one word each")
    signal_lead_s: int = Field(0, description="SLURM: seconds before the end at which it sends USR1; 0: never", ge=0)


class Facts(Section):
    """The facts of one machine. The defaults are those of a host that nothing is known of."""

    description: str = ""
    device: Literal["", "cpu", "nvidia", "amd", "intel"] = Field("", description="vendor; empty: what is seen")
    scheduler: SchedulerName = Field("none", description="of jobs submitted from a login node")
    starter: StarterName | Literal[""] = Field("", description="of ranks; empty: by scheduler and what is on PATH")
    starter_args: Words = Field((), description="options of the starter that this machine needs")
    ranks_per_host: int = Field(0, description="ranks on a host; 0: its visible accelerators", ge=0)
    cores: Words = Field((), description="cores of each socket, in the order of local ranks, as '0-51 52-103'")
    reserved_cores: str = Field("", description="cores that ranks leave to the system, as '0,52'")
    fabric: Words = Field((), description="host names on the fast network, as '{host}-hsn0'; the first that resolves")
    environment: dict[str, str] = Field({}, description="variables of communication libraries; the user's own win")
    submit: SubmitFacts = SubmitFacts()


def parse_facts(content: dict[Any, Any], where: str) -> Facts:
    """Return the ``facts`` mapping of a machine file.

    Raises:
        ConfigError: one line, beginning with ``where``, for a key or a value that is none.
    """
    try:
        return Facts.model_validate(content)
    except ValidationError as problem:
        first = problem.errors()[0]
        name = ".".join(str(part) for part in ("facts", *first["loc"]))
        reason = "no fact is called so" if first["type"] == "extra_forbidden" else first["msg"]
        raise ConfigError(f"{where}: {name}: {reason}; known facts: {', '.join(Facts.model_fields)}") from None
