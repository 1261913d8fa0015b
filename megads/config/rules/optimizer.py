"""Rules of the optimizer that need no look at the host; ``launch.preflight.packages`` has the others."""

from __future__ import annotations

from collections.abc import Iterator

from megads.config.optimizers import OPTIMIZERS
from megads.config.rules.advice import Change, Problem, each_of
from megads.config.rules.engine import OPTIMIZER as OFFLOAD
from megads.config.rules.engine import PARAMS, ZERO
from megads.config.schema import ModelConfig, RunConfig
from megads.families.decoder import spec_of

OPT = "optim.optimizer"


def optimizer(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check that the optimizer can run at all, and where its state is to be."""
    row, place = OPTIMIZERS[run.optim.optimizer], run.deepspeed.offload_optimizer
    given, instead = f"OPT={row.name}", {OPT: row.instead}
    if row.never:
        yield Problem(f"{given} cannot run here: {row.never}", [instead])
    if row.on_host and place != "cpu":
        ways: list[Change] = [{OFFLOAD: "cpu"}, instead, {OFFLOAD: "cpu", ZERO: 1}]
        yield Problem(f"{given} steps weights that are on the host, and OFFLOAD_OPTIMIZER={place}", ways)
    if row.is_whole and place == "nvme":
        text = f"{given} gathers weights that OFFLOAD_OPTIMIZER=nvme may have put on a disk just then"
        yield Problem(text, [{OFFLOAD: "cpu"}, {OPT: "adamw"}])
    if not row.offload and place != "none":
        text = f"{given} steps weights that are on the device, and OFFLOAD_OPTIMIZER={place} keeps them on the host"
        yield Problem(text, [{OFFLOAD: "none"}, instead, {OFFLOAD: "none", PARAMS: "none"}])


def settings(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check values that the optimizer's library would refuse or make nothing of on a rank."""
    optim = run.optim
    row = OPTIMIZERS[optim.optimizer]
    if row.is_averaged and not run.checkpoint.save_optim:
        text = (
            f"NO_SAVE_OPTIM=1: without its optimizer state OPT={row.name} leaves weights that can no longer be averaged"
        )
        yield Problem(text, [{"checkpoint.save_optim": True}, {OPT: "adamw"}])
    if row.is_averaged and not getattr(optim, row.averages_by):
        text = f"{row.averages_by.upper()}=0: OPT={row.name} divides by it to find the average"
        yield Problem(text, [{f"optim.{row.averages_by}": 0.9}])
    if "GALORE_RANK" in row.settings:
        side = smallest_side(run.model)
        if optim.galore_rank > side:
            text = f"GALORE_RANK={optim.galore_rank} is more than the smaller side of a layer's matrix, {side}"
            smaller = [rank for rank in (side // 4, side) if rank]
            ways: list[Change] = [*each_of("optim.galore_rank", smaller), {OPT: "adamw"}]
            yield Problem(text, ways, overridable=("optim.galore_rank",))


def smallest_side(model: ModelConfig) -> int:
    """Return the smallest side of any matrix in a layer; q, k and v are one, and so are gate and up."""
    return min(min(each.shape) for each in spec_of(model).matrices())


RULES = (optimizer, settings)
