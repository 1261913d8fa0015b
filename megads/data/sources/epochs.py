"""What a run draws from each corpus, and how often it reads it: worth a look before node hours are spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megads.config.schedule.batches import planned_samples
from megads.config.schema import RunConfig
from megads.data.formats.token_file import open_dataset
from megads.data.samples.blend import normalised
from megads.data.sources.file_list import Shard


@dataclass(frozen=True)
class Share:
    """One corpus of the training data."""

    corpus: str
    files: int
    weight: float  # share of the samples
    tokens: float  # in the documents that are trained on
    drawn: float  # tokens that the run takes
    most_epochs: float  # of one of its files

    @property
    def epochs(self) -> float:
        """How often the corpus is read, on average."""
        return self.drawn / self.tokens


def train_shares(run: RunConfig, shards: Sequence[Shard]) -> list[Share]:
    """Return every corpus of the training data with a weight, the largest share first.

    Documents are taken to be of equal length where only a part of them is trained on.
    """
    used = [shard for shard in shards if shard.weight > 0]
    total = planned_samples(run) * run.model.seq_length
    splits = run.data.shares()
    part = splits[0] / sum(splits)
    members: dict[str, list[tuple[float, float]]] = {}
    for shard, weight in zip(used, normalised([shard.weight for shard in used]), strict=True):
        members.setdefault(shard.corpus, []).append((weight, max(1.0, open_dataset(shard.prefix).num_tokens * part)))
    found = []
    for corpus, files in members.items():
        weight, tokens = sum(each for each, _ in files), sum(each for _, each in files)
        most = max(weight * total / tokens for weight, tokens in files)
        found.append(Share(corpus, len(files), weight, tokens, weight * total, most))
    return sorted(found, key=lambda share: -share.weight)
