"""Settings of what a run does when its numbers go wrong, and of runs that repeat bit for bit."""

from __future__ import annotations

from typing import Literal

from megads.config.setting import Section, in_steps, setting


class StabilityConfig(Section):
    """What a run does when its numbers go wrong, and whether it can be repeated bit for bit."""

    on_spike: Literal["none", "skip", "stop", "rollback"] = setting(
        "none",
        "ON_SPIKE --on-spike",
        "a step whose loss is far above the ones before: skip it, end the run, or roll back and skip the data",
    )
    on_nan: Literal["skip", "stop", "rollback"] = setting(
        "skip",
        "ON_NAN --on-nan",
        "a step whose loss or gradient is not finite; overflows that the fp16 loss scale handles do not count",
    )
    spike_factor: float = setting(
        8.0,
        "SPIKE_FACTOR",
        "a loss is a spike above median + this x spread of SPIKE_WINDOW losses (1.4826 MAD, at least 1 %)",
        gt=0,
    )
    spike_window: int = setting(
        100,
        "SPIKE_WINDOW",
        "number of accepted losses that the next one is compared with; no spike is reported before that many",
        unit="steps",
        ge=3,
        le=1000,
    )
    spike_after: int = in_steps(200, "SPIKE_AFTER", "no loss of the first steps of a run is a spike")
    rollback_skip: int = in_steps(0, "ROLLBACK_SKIP", "steps after the bad one whose data a rollback also skips")
    max_rollbacks: int = setting(
        3, "MAX_ROLLBACKS", "rollbacks to one checkpoint before the run ends with an error", gt=0
    )
    replica_interval: int = in_steps(
        100, "REPLICA_INTERVAL", "steps between comparisons of weights that several ranks hold copies of; 0: never"
    )
    on_divergence: Literal["stop", "report"] = setting(
        "stop", "ON_DIVERGENCE", "copies of weights that differ: end the run and name the rank, or only report it"
    )
    nonfinite_keep: Literal["nothing", "batch", "weights"] = setting(
        "weights",
        "NONFINITE_KEEP",
        "a step with NaN or Inf is computed again to find the first such operator; what is kept for megads replay",
    )
    rounding_interval: int = in_steps(
        100, "ROUNDING_INTERVAL", "steps between counts of updates that round to zero, also in steps 1, 2, 10; 0: never"
    )
    ranges_interval: int = in_steps(
        0, "RANGES_INTERVAL", "steps between measurements of activations, gradients and weights per layer; 0: never"
    )
    deterministic: bool = setting(
        False,
        "DETERMINISTIC --deterministic-mode",
        "the same run twice is the same bit for bit; slower on accelerators",
    )
