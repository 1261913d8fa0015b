"""Which engine runs a run, and why; what only one of the two can do. Never imports torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from megads.config.optimizers import OPTIMIZERS
from megads.config.schema import RunConfig
from megads.config.stages import schedule_of
from megads.config.tree import env_name, fields, value_of
from megads.text.plural import listed

AUTO_TAKES_NATIVE = True
"""Whether ``ENGINE=auto`` takes the native engine where that can do what the settings ask for."""

Kind = Literal["native", "deepspeed"]
ENGINE = "engine.kind"


@dataclass(frozen=True)
class Choice:
    """An engine, and in words why it is that one; no reason where the user named it."""

    kind: Kind
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.kind}, since {self.reason}" if self.reason else self.kind


def _differ(run: RunConfig, names: tuple[str, ...]) -> list[str]:
    """Return those of the settings ``names`` that are not at their default."""
    return [name for name in names if value_of(run, name) != fields()[name].default]


@dataclass(frozen=True)
class Ability:
    """Something that settings ask for and that one engine does.

    ``names`` are the settings that ask for it where they differ from their default, unless ``asked`` says which of
    them do.
    """

    what: str
    names: tuple[str, ...]
    native: str  # how the native engine does it; empty: it does not
    deepspeed: str  # how DeepSpeed does it; empty: it does not
    asked: Callable[[RunConfig], list[str]] | None = None

    def asking(self, run: RunConfig) -> list[str]:
        """Return the settings of ``run`` that ask for it."""
        return self.asked(run) if self.asked else _differ(run, self.names)

    def done_by(self, kind: str) -> str:
        """Return how an engine does it; empty: it does not."""
        return self.native if kind == "native" else self.deepspeed


def _values(name: str, *values: Any) -> Callable[[RunConfig], list[str]]:
    return lambda run: [name] if value_of(run, name) in values else []


def _in(section: str, *keys: str) -> tuple[str, ...]:
    return tuple(f"{section}.{key}" for key in keys)


def _of_schedules(run: RunConfig) -> list[str]:
    names = _in("parallel", "pipeline_schedule", "virtual_stages", "layers_per_virtual_stage")
    return _differ(run, names) if schedule_of(run) != "1f1b" else []


def _of_deepspeed(run: RunConfig) -> list[str]:
    return ["optim.optimizer"] if OPTIMIZERS[run.optim.optimizer].library.startswith("deepspeed.") else []


PREFETCH = "deepspeed.prefetch_bucket_size"
_SIZES = (
    *_in("deepspeed", "allgather_bucket_size", "sub_group_size", "param_persistence_threshold"),
    *_in("deepspeed", "max_live_parameters", "max_reuse_distance", "prefetch_bucket_size"),
)

ABILITIES = (
    Ability("ZeRO 0 to 3 over DP x SP", ("parallel.zero_stage",), "yes", "yes", lambda run: []),
    Ability(
        "pipeline schedules besides 1F1B",
        _in("parallel", "pipeline_schedule", "virtual_stages", "layers_per_virtual_stage"),
        "interleaved, zb-h1",
        "",
        _of_schedules,
    ),
    Ability("ZeRO++ hpZ: a copy of the weights in a host", ("deepspeed.hpz_partition_size",), "yes", "yes"),
    Ability(
        "optimizer state and masters in host memory",
        _in("deepspeed", "offload_optimizer", "offload_pin_memory"),
        "yes",
        "yes",
        _values("deepspeed.offload_optimizer", "cpu"),
    ),
    Ability("size of a reduction", ("deepspeed.reduce_bucket_size",), "yes", "yes"),
    Ability(
        "reductions while the backward pass runs",
        ("parallel.ddp_impl",),
        "always",
        "DDP_IMPL=torch, not in bf16 with ZeRO 1",
        lambda run: [],
    ),
    Ability("DeepSpeed's own keys", ("deepspeed.config_overrides",), "", "yes"),
    Ability(
        "optimizer state on NVMe",
        _in("deepspeed", "offload_optimizer", "nvme_path", "offload_buffer_count")
        + _in("deepspeed", "offload_pipeline_read", "offload_pipeline_write"),
        "",
        "yes",
        lambda run: (
            _values("deepspeed.offload_optimizer", "nvme")(run)
            + _differ(run, _in("deepspeed", "nvme_path", "offload_buffer_count"))
            + _differ(run, _in("deepspeed", "offload_pipeline_read", "offload_pipeline_write"))
        ),
    ),
    Ability("weights off the device", ("deepspeed.offload_params",), "", "yes"),
    Ability(
        "DeepSpeed's recomputation",
        _in("recompute", "engine", "partition_activations", "contiguous_memory")
        + _in("recompute", "synchronize", "profile"),
        "",
        "yes",
    ),
    Ability("when a rank imports torch's compiler", ("deepspeed.torch_compiler",), "yes", "yes"),
    Ability("gradients sent in half precision", ("deepspeed.communication_data_type",), "yes", "yes"),
    Ability("gradients accumulated in half precision", ("deepspeed.grad_accum_dtype",), "", "yes"),
    Ability(
        "sizes of DeepSpeed's buckets, groups and gathers",
        _SIZES,
        "",
        "yes",
        lambda run: [name for name in _differ(run, _SIZES) if (name, value_of(run, name)) != (PREFETCH, 0)],
    ),
    Ability("ZeRO 3 without gathering ahead (0)", (PREFETCH,), "yes", "yes", _values(PREFETCH, 0)),
    Ability(
        "DeepSpeed's ways to reduce and to check",
        _in("deepspeed", "contiguous_gradients", "reduce_scatter", "zero_allow_untested_optimizer")
        + _in("deepspeed", "zero_force_ds_cpu_optimizer"),
        "",
        "yes",
    ),
    Ability(
        "DeepSpeed's logs and timers",
        _in("deepspeed", "steps_per_print", "wall_clock_breakdown", "comms_logger", "comms_logger_verbose")
        + _in("deepspeed", "comms_logger_prof_all", "comms_logger_debug"),
        "",
        "yes",
    ),
    Ability("DeepSpeed's own optimizers, ds.*", ("optim.optimizer",), "", "yes", _of_deepspeed),
)
"""What a run may ask of its engine. Every setting of the sections ``deepspeed`` and ``recompute`` that the native
engine does not read is in a row without ``native``, so that none is silently ignored."""


def choose(run: RunConfig, world_size: int) -> Choice:
    """Return the engine of a derived ``run`` on ``world_size`` ranks."""
    if run.engine.kind != "auto":
        return Choice(run.engine.kind)
    if needs := needed(run, "deepspeed"):
        return Choice("deepspeed", f"the native engine does not do {needs}")
    if needs := needed(run, "native"):
        return Choice("native", f"DeepSpeed does not do {needs}")
    return Choice("native") if AUTO_TAKES_NATIVE else Choice("deepspeed", "it is the default")


def missing(run: RunConfig, kind: Kind) -> Iterator[tuple[Ability, list[str]]]:
    """Yield what ``run`` asks for and engine ``kind`` does not do, with the settings that ask for it."""
    for row in ABILITIES:
        if not row.done_by(kind) and (names := row.asking(run)):
            yield row, names


@functools.lru_cache(maxsize=64)  # formulas of memory and traffic ask for every pipeline stage
def needed(run: RunConfig, kind: Kind) -> str:
    """Return the settings that only engine ``kind`` follows, as a user types them; empty: there are none."""
    other: Kind = "native" if kind == "deepspeed" else "deepspeed"
    found = [shown(run, name) for _, names in missing(run, other) for name in names]
    return listed(found) if found else ""


def shown(run: RunConfig, name: str) -> str:
    """Return a setting as a user types it; of JSON the name only."""
    value = value_of(run, name)
    return env_name(name) if str(value).startswith("{") else f"{env_name(name)}={_text(value)}"


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def table() -> str:
    """Return the table of docs/engine.md: what each engine does."""
    lines = ["| what | settings | native | DeepSpeed |", "|---|---|---|---|"]
    for row in ABILITIES:
        names = ", ".join(f"`{env_name(name)}`" for name in row.names)
        lines.append(f"| {row.what} | {names} | {row.native or 'no'} | {row.deepspeed or 'no'} |")
    return "\n".join(lines) + "\n"
