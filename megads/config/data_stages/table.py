"""The stages of a run's data, with the sample at which each begins: what the launcher has planned, and ranks read.

The table is the text of one setting, so that it is in ``config.yaml`` and in every checkpoint. A run without
stages has an empty text, and :meth:`StageTable.of` returns None.
"""

from __future__ import annotations

import bisect
import functools
import json
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

from megads.config.schema import RunConfig
from megads.errors import ConfigError
from megads.storage.reading import parse_json

SEED_STEP = 1_000_003
"""Apart from each other are the seeds of two stages, so that no stage repeats the order of another."""


@dataclass(frozen=True)
class StageLength:
    """A length inside a stage, as it was given: ``2000 iters``, ``1B tokens``, ``64 samples`` or ``10%``."""

    value: float
    unit: str  # "iters" | "tokens" | "samples" | "%"

    def samples(self, iters: int, batch: int, seq: int) -> float:
        """Return it in samples, for a stage of ``iters`` steps of ``batch`` samples of ``seq`` tokens."""
        sizes = {"iters": batch, "samples": 1.0, "tokens": 1.0 / seq, "%": iters * batch / 100}
        return self.value * sizes[self.unit]

    def __str__(self) -> str:
        return f"{self.value:g}%" if self.unit == "%" else f"{self.value:.12g} {self.unit}"


@dataclass(frozen=True)
class StageRate:
    """The learning rate of a stage: a warm-up to ``peak``, a constant part, and a decay to ``to``."""

    peak: float | None = None  # None: of the first stage LR, of others the rate at which the one before ends
    warmup: StageLength | None = None  # None: none
    to: float | None = None  # rate at the end; None: it stays
    shape: str = "cosine"  # of the decay
    cooldown: StageLength | None = None  # the decay takes the end of the stage; None: all behind the warm-up


@dataclass(frozen=True)
class StageData:
    """What a stage is drawn from; empty: what the one before is drawn from, and of the first the run's own data."""

    file_list: str = ""  # absolute
    lines: tuple[str, ...] = ()  # of a data list, instead
    mixture: tuple[tuple[str, float], ...] = ()  # shares of corpora; empty: the weights of the list

    @property
    def is_named(self) -> bool:
        """Whether there are files of its own."""
        return bool(self.file_list or self.lines)


@dataclass(frozen=True)
class DataStage:
    """One stage, planned."""

    name: str
    line: int  # of the file, for messages
    first: int  # sample of the run at which it begins
    iters: int
    batch: int  # samples of a step
    seq: int  # tokens of a sample
    seed: int  # added to the seed of the data
    data: StageData = field(default_factory=StageData)
    rate: StageRate | None = None
    offset: int = 0  # samples of its order that the stages before it have read: it reads on
    past: bool = False  # trained before the run branched off: nothing of it is read
    planned: int = 0  # samples that its order is made for, with those of all stages that read on

    @property
    def samples(self) -> int:
        """Samples that it takes."""
        return self.iters * self.batch

    @property
    def end(self) -> int:
        """Sample of the run at which it ends."""
        return self.first + self.samples

    @property
    def tokens(self) -> int:
        """Tokens that it takes."""
        return self.samples * self.seq


@dataclass(frozen=True)
class StageTable:
    """All stages of a run, in their order; there is at least one."""

    file: str  # absolute: where they were read
    stages: tuple[DataStage, ...]

    @staticmethod
    def of(run: RunConfig) -> StageTable | None:
        """Return the stages of a derived run, None where its data has none."""
        return parse_table(run.data.stage_table) if run.data.stage_table else None

    def text(self) -> str:
        """Return it as the text of the setting."""
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True)

    @property
    def iters(self) -> int:
        """Steps of the run."""
        return sum(each.iters for each in self.stages)

    @property
    def samples(self) -> int:
        """Samples of the run."""
        return self.stages[-1].end

    @property
    def tokens(self) -> int:
        """Tokens of the run."""
        return sum(each.tokens for each in self.stages)

    @property
    def longest(self) -> int:
        """Tokens of the longest samples."""
        return max(each.seq for each in self.stages)

    @property
    def has_lengths(self) -> bool:
        """Whether samples of several lengths are read."""
        return len({each.seq for each in self.stages}) > 1

    @property
    def has_rates(self) -> bool:
        """Whether the stages give the learning rate."""
        return any(each.rate is not None for each in self.stages)

    def index_at(self, consumed: int) -> int:
        """Return the number, from 0 on, of the stage that comes behind ``consumed`` samples; at the end the last."""
        starts = [each.first for each in self.stages]
        return max(0, bisect.bisect_right(starts, consumed) - 1)

    def at(self, consumed: int) -> DataStage:
        """Return the stage whose samples come when ``consumed`` samples of the run are used; at the end the last."""
        return self.stages[self.index_at(consumed)]

    def tokens_until(self, consumed: int) -> int:
        """Return the tokens of the first ``consumed`` samples."""
        index = self.index_at(consumed)
        stage = self.stages[index]
        return sum(each.tokens for each in self.stages[:index]) + (consumed - stage.first) * stage.seq

    def iteration_ends(self) -> list[int]:
        """Return the iteration at which each stage ends."""
        return list(accumulate(each.iters for each in self.stages))


@functools.lru_cache(maxsize=16)
def parse_table(text: str) -> StageTable:
    """Return the table that :meth:`StageTable.text` wrote.

    Raises:
        ConfigError: the text is not one.
    """
    try:
        found = parse_json(text)
        return StageTable(found["file"], tuple(_stage(each) for each in found["stages"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"DATA_STAGE_TABLE={text:.60}: is not what the launcher writes ({error!s:.60}); set DATA_STAGES to the "
            "file of the stages, and leave this one unset"
        ) from None


def _stage(given: dict[str, Any]) -> DataStage:
    data, rate = given["data"], given["rate"]
    lines, mixture = tuple(data["lines"]), tuple((name, share) for name, share in data["mixture"])
    if rate is not None:
        lengths = {name: rate[name] and StageLength(**rate[name]) for name in ("warmup", "cooldown")}
        rate = StageRate(**{**rate, **lengths})
    return DataStage(**{**given, "data": StageData(data["file_list"], lines, mixture), "rate": rate})
