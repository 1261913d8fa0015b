"""What is asked of a search, and what it holds fixed: every setting that the user gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from megads.config.derive import BY_USER, with_change
from megads.config.rules.advice import Change, Layout
from megads.config.schema import RunConfig
from megads.config.sources.resolve import Resolved, rank_of
from megads.config.tree import value_of
from megads.plan.memory import GIB
from megads.plan.places.place import Place
from megads.plan.time.step import step_time
from megads.plan.time.systems import MEGADS, System

TP, PP, SP, DP = "parallel.tensor", "parallel.pipeline", "parallel.sequence", "parallel.data"
ZERO, SCATTER = "parallel.zero_stage", "parallel.scatter_norms"
SCHEDULE, CHUNKS, PER_CHUNK = (
    "parallel.pipeline_schedule",
    "parallel.virtual_stages",
    "parallel.layers_per_virtual_stage",
)
MICRO, STEPS, BATCH = "train.micro_batch", "train.grad_acc_steps", "train.global_batch"
RECOMPUTE = "recompute.granularity"

SEARCHED = (TP, PP, SP, DP, ZERO, MICRO, STEPS, BATCH, RECOMPUTE, SCATTER, SCHEDULE, CHUNKS, PER_CHUNK)
"""What a layout is, and held where the user gives it."""

TOKENS_PER_STEP = 1 << 24
"""The most of a batch that nobody gave, that of Llama 3 405B (arXiv 2407.21783)."""

VOCABULARY = 32_000
"""Of a model whose VOCAB_SIZE is not set: its tokenizer is not read here."""


@dataclass(frozen=True)
class Ask:
    """What layouts are searched for.

    Attributes:
        resolved: the settings before any value is derived.
        place: where.
        max_memory: share of a device's memory that a run may take.
        global_batch: samples; 0: that of the settings.
        system: whose kernels and traffic are counted.
    """

    resolved: Resolved
    place: Place
    num_hosts: int
    ranks_per_host: int
    max_memory: float = 0.9
    global_batch: int = 0
    system: System = field(default=MEGADS)

    @property
    def world_size(self) -> int:
        """Return the ranks."""
        return self.num_hosts * self.ranks_per_host

    @property
    def device_bytes(self) -> int:
        """Return the memory of a rank's device."""
        return int(self.place.memory_gib * GIB)

    @property
    def limit_bytes(self) -> int:
        """Return what a rank may take of its device."""
        return int(self.device_bytes * self.max_memory)

    @cached_property
    def vocab_size(self) -> int:
        """Return the tokens of the tokenizer, which is not read."""
        return self.resolved.run.model.vocab_size or VOCABULARY

    def holds(self, name: str) -> bool:
        """Return whether the user gives the setting ``name``."""
        return rank_of(self.resolved.origins[name]) >= BY_USER

    def value(self, name: str) -> Any:
        """Return a setting before any value is derived."""
        return value_of(self.resolved.run, name)

    @cached_property
    def batch(self) -> int:
        """Return the samples of a step; 0: they follow from the layout and GRAD_ACC_STEPS, which the user gives.

        Without one in the settings: what these give as they are, halved until it is at most ``TOKENS_PER_STEP``.
        """
        if self.global_batch or self.value(BATCH):
            return self.global_batch or int(self.value(BATCH))
        if self.holds(STEPS):
            return 0
        used = max(1, self.held_ranks)
        micro, data = self.value(MICRO), max(1, self.world_size // used)
        found = int(micro * max(1, self.value(STEPS)) * data)
        least = micro if self.holds(MICRO) else 1
        while found % 2 == 0 and found // 2 % least == 0 and found * self.value("model.seq_length") > TOKENS_PER_STEP:
            found //= 2
        return found

    @property
    def batch_is_given(self) -> bool:
        """Return whether a preset or the user says how many samples a step has."""
        return bool(self.value(BATCH) or self.holds(STEPS))

    @property
    def held_ranks(self) -> int:
        """Return the ranks of one copy of the model by the degrees that the user gives."""
        degrees = [self.value(name) for name in (TP, PP, SP) if self.holds(name)]
        product = 1
        for degree in degrees:
            product *= degree
        return product

    def derived(self, change: Change) -> Layout:
        """Return the run with ``change``, and the first rule that it breaks, as a launch would.

        Raises:
            MegadsError: it cannot be derived.
        """
        return with_change(self.resolved, change, lambda run: (self.num_hosts, self.ranks_per_host), self.vocab_size)

    def seconds(self, run: RunConfig) -> Any:
        """Return how long a step of ``run`` takes, line by line."""
        return step_time(run, self.world_size, self.place, system=self.system)
