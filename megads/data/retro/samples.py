"""The samples whose chunks are queried: those of a GPT run with the project's data, in its order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from megads.config.schema import RunConfig
from megads.data.datasets import build_splits, read_shards
from megads.data.retro.project import Project, resolved
from megads.data.samples.gpt import GPTSamples
from megads.data.samples.mix import Mix
from megads.data.samples.retro.queried import data_path_of
from megads.errors import DataError

CACHE = ".cache"
"""Folder of the sample indices within a project, unless ``retro_gpt_data_cache_path`` names one."""


def run_of(project: Project) -> RunConfig:
    """Return a run whose samples are those of the project's ``config.json``.

    Its batches have one sample: the number of samples of a split is then what Megatron plans with.
    """
    config = project.config
    spec = resolved(config.tokenizer, project.folder)
    evaluation = config.eval_iters * config.global_batch_size if config.eval_interval else 0
    return RunConfig.model_validate(
        {
            "model": {"seq_length": config.seq_length, "vocab_size": max(1, int(config.own.get("vocab_size", 0)))},
            "train": {
                "train_iters": config.train_samples,
                "global_batch": 1,
                "seed": config.seed,
                "eval_interval": config.eval_interval,
                "eval_iters": evaluation,
            },
            "data": {
                "path": data_path_of(project),
                "split": config.split,
                "tokenizer_type": spec.type,
                "cache_dir": str(project.folder / (config.data_cache_path or CACHE)),
            },
        }
    )


class QuerySamples:
    """Chunks of the samples of a split, and the documents that each may not retrieve from."""

    def __init__(self, mix: Mix, project: Project):
        self._mix, self._project = mix, project
        self._numbers = {file.prefix: number for number, file in enumerate(project.files)}

    @property
    def num_chunks(self) -> int:
        """Chunks of all samples."""
        return len(self._mix) * self._project.chunks_per_sample

    def chunks(self, start: int, stop: int) -> list[list[int]]:
        """Return the tokens of chunks ``start..stop``, each as long as a chunk; ends of documents included."""
        length, count = self._project.config.chunk_length, self._project.chunks_per_sample
        found, sample, row = [], -1, np.empty(0, np.int64)
        for chunk in range(start, stop):
            if chunk // count != sample:
                sample = chunk // count
                row = self._mix[sample]
            first = chunk % count * length
            found.append(row[first : first + length].tolist())
        return found

    def documents(self, chunk: int) -> tuple[int, npt.NDArray[np.int32]]:
        """Return the number of the data set that a chunk's sample is of, and the documents that the sample has."""
        samples, number = self._mix.drawn_from(chunk // self._project.chunks_per_sample)
        if not isinstance(samples, GPTSamples):
            raise DataError("Retro queries samples of a GPT")
        return self._numbers[samples.dataset.prefix], samples.documents(number)


class Queries:
    """The samples of each split of a project."""

    def __init__(self, project: Project):
        self._project = project

    @cached_property
    def splits(self) -> dict[str, QuerySamples | None]:
        """The samples of train, valid and test; None where nothing is asked for.

        Raises:
            DataError: a split has too little data.
        """
        run = run_of(self._project)
        mixes = build_splits(run, read_shards(run))
        found = {split: mix for split, mix in mixes.items() if isinstance(mix, Mix)}
        return {split: QuerySamples(found[split], self._project) if split in found else None for split in mixes}


def text_of(tokens: Sequence[int], project: Project) -> str:
    """Return the text of a chunk that is embedded: its tokens, without those that end documents or fill it up."""
    return project.tokenizer.decode([token for token in tokens if token != project.eod])
