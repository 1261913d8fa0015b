"""One row of samples for all stages: those of the first, then those of the second, ...

The samples of a stage are a function of the stage alone: of its files, length and seed. Another stage behind it
changes none of them, and a run that resumes in the middle finds the sample that would have come.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.config.data_stages.table import DataStage
from megads.config.schema import RunConfig
from megads.data.datasets import build_splits, data_fingerprint
from megads.data.samples.index_cache.build import Team
from megads.data.samples.mix import Mix
from megads.data.sources.demo import make_demo
from megads.data.stages.shards import stages_with_files
from megads.errors import DataError


@dataclass(frozen=True)
class StageSamples:
    """The training samples of a run, in the order of its stages; sample ``i`` is as long as its stage says."""

    stages: Sequence[DataStage]
    mixes: Sequence[Mix]

    def __len__(self) -> int:
        return self.stages[-1].end

    @property
    def width(self) -> int:
        """Numbers of the longest samples."""
        return max(mix.width for mix in self.mixes)

    @property
    def corpora(self) -> list[str]:
        """Names of the corpora of all stages, in their order."""
        return list(dict.fromkeys(name for mix in self.mixes for name in mix.corpora))

    def __getitem__(self, i: int) -> npt.NDArray[np.int64]:
        """Return sample ``i``, int64 [width of its stage]; errors as of :class:`Mix`, with the stage."""
        mix, number, name = self._find(i)
        try:
            return mix[number]
        except DataError as error:
            raise DataError(f"stage {name}: {error}") from None

    def corpus_of(self, i: int) -> str:
        """Return the name of the corpus that sample ``i`` is of."""
        mix, number, _ = self._find(i)
        return mix.corpus_of(number)

    def _find(self, i: int) -> tuple[Mix, int, str]:
        if not 0 <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        index = bisect.bisect_right([each.first for each in self.stages], i) - 1
        stage = self.stages[index]
        if stage.past:
            raise DataError(
                f"stage {stage.name}: sample {i} was trained before this run branched off, and its order is not made"
            )
        return self.mixes[index], stage.offset + i - stage.first, stage.name


def build_stages(run: RunConfig, team: Team) -> tuple[dict[str, Any], str]:
    """Return the samples of every split, and what differs when a weight or a file of a stage does. Collective.

    Validation and test are those of the first stage: its files, or files of their own, and its length.

    Raises:
        DataError: as :func:`megads.data.datasets.build_splits`, with the stage.
    """
    held_out: dict[str, Any] = {}
    stages, mixes, fingerprints = [], [], []
    for stage, alone, listed in stages_with_files(run):
        # Ranks find the demo corpus ready, unless another host made it: then this one makes its own.
        shards = listed or make_demo(run, lambda what, done, total: None)
        try:
            splits = build_splits(alone, shards, team)
        except DataError as error:
            raise DataError(f"stage {stage.name}: {error}") from None
        train = splits["train"]
        assert isinstance(train, Mix)
        held_out = held_out or dict(splits)
        stages.append(stage)
        mixes.append(train)
        fingerprints.append(data_fingerprint(shards, train.plan.files()))
    return {**held_out, "train": StageSamples(stages, mixes)}, " ".join(fingerprints)
