"""From the run's settings and data files to its train, valid and test samples.

What is drawn from which file is a plan: small, and made from the settings, the lists, and the
headers of the files. Rank 0 makes it and sends it to the others, so all ranks read the same.
The long arrays that a plan needs are in the cache and are mapped.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from megads.config.data_stages.table import StageTable
from megads.config.schedule.batches import planned_samples
from megads.config.schema import RunConfig
from megads.config.settings.data import HeldOut
from megads.data.formats.token_file import TokenFile, open_dataset
from megads.data.samples.gpt import Stamp
from megads.data.samples.index_cache.build import Team, build_together
from megads.data.samples.index_cache.cache import Cache
from megads.data.samples.masked.options import MaskedOptions
from megads.data.samples.mix import FileRecipe, Mix, MixOptions, MixPlan, Source, plan_mix
from megads.data.samples.retro.queried import with_neighbors, with_planned_sizes
from megads.data.samples.retro.samples import RetroSamples
from megads.data.samples.split import split_documents
from megads.data.sentence_files import check_has_sample, check_split_into_sentences, count_samples, holds_sample
from megads.data.sources import demo
from megads.data.sources.file_list import Shard, has_weights, parse_data_path, read_file_list
from megads.data.tokenizers.word_pieces import load_word_pieces
from megads.errors import ConfigError, DataError

SPLITS = ("train", "valid", "test")
_FILES_BESIDE_DATA = 256  # sockets, logs, libraries
_FILES_OF_SHARD = 5  # tokens and their index, and an index for each split
_LENGTHS = 4096  # read at once to see whether a split holds one sample

Plans = dict[str, MixPlan | None]
"""A plan for each of :data:`SPLITS`, None where nothing is asked for."""


def samples_of(run: RunConfig) -> dict[str, int]:
    """Return how many samples each split needs; 0 where nothing is asked for.

    Every validation reads the same ``eval_iters`` global batches, so its losses compare.
    Validation is not asked for with ``EVAL_INTERVAL=0``, or without a share of the data and files
    of its own; the final test not without one of these two. A run that evaluates only asks for one
    batch to train on: an index of the samples of a whole run would take hours.
    """
    evaluation = run.train.eval_iters * run.train.global_batch
    _, valid, test = run.data.shares()
    own = {split: run.data.held_out(split).text for split in ("valid", "test")}
    validates = run.train.eval_interval > 0 or run.train.evaluate_only
    return {
        "train": run.train.global_batch if run.train.evaluate_only else planned_samples(run),
        "valid": evaluation if validates and (valid > 0 or own["valid"]) else 0,
        "test": evaluation if test > 0 or own["test"] else 0,
    }


def uses_demo(run: RunConfig) -> bool:
    """Return whether the run, or its first stage, trains on the demo corpus: it names no data, and no task."""
    table = StageTable.of(run)
    staged = table is not None and table.stages[0].data.is_named
    return not (run.data.file_list or run.data.path or run.finetune.task or staged)


def read_shards(run: RunConfig) -> list[Shard]:
    """Return the run's data files: those of its list or path, else the demo corpus, which must have been made.

    Raises:
        ConfigError: both a list and a path are given.
        DataError: they are not understood, or the demo corpus is not there.
    """
    if run.data.path and run.data.file_list:
        raise ConfigError(f"DATA_PATH={run.data.path} and DATA_FILE_LIST={run.data.file_list}: set only one of them")
    for split, listed in (("valid", run.data.valid_file_list), ("test", run.data.test_file_list)):
        own = run.data.held_out(split)
        if own.is_path and listed:
            raise ConfigError(
                f"{own.variable}={own.text} and {split.upper()}_DATA_FILE_LIST={listed}: set only one of them"
            )
    if run.data.path:
        return parse_data_path(run.data.path)
    return read_file_list(Path(run.data.file_list)) if run.data.file_list else demo.read_demo(run)


Samples = Mix | RetroSamples
"""The samples of a split."""


def build_splits(run: RunConfig, shards: Sequence[Shard], team: Team | None = None) -> dict[str, Samples | None]:
    """Return the samples of train, valid and test; None where nothing is asked for. Collective.

    The samples are a pure function of files and settings; how many ranks there are changes nothing. Without a
    ``team`` this process builds alone.

    Raises:
        DataError: a file is broken, a split gets no documents or less than one sample, or the
            cache cannot be written; on every rank the same.
    """
    team = team or Team()
    plans, pieces = team.from_first(lambda: (make_plans(run, shards, Files()), load_word_pieces(run)))
    cache = Cache.of(run)
    build_together([recipe for plan in plans.values() if plan for recipe in plan.recipes()], cache, team)
    files = Files()
    allow_open_files(
        _FILES_OF_SHARD * max((sum(1 for _ in plan.files()) for plan in plans.values() if plan), default=0)
    )
    mixes = {split: Mix(plan, cache.get, files.open, pieces) if plan else None for split, plan in plans.items()}
    return with_neighbors(run, mixes, samples_of(run))


class Files:
    """Token files by prefix, each opened once, when it is needed."""

    def __init__(self) -> None:
        self._open: dict[str, TokenFile] = {}
        self._lock = threading.Lock()

    def open(self, prefix: str) -> TokenFile:
        """Return the reader of a file; errors as :func:`open_dataset`."""
        with self._lock:
            if prefix not in self._open:
                self._open[prefix] = open_dataset(prefix)
            return self._open[prefix]


def make_plans(run: RunConfig, shards: Sequence[Shard], files: Files) -> Plans:
    """Return how each split is drawn.

    Every file must have documents to train on. A file too small to spare any for validation
    or test is skipped there, as long as another one has some.

    Raises:
        DataError: a file is broken, or a split has no documents or less than one sample.
    """
    samples, data, masked = with_planned_sizes(run, samples_of(run)), run.data, MaskedOptions.of(run)
    options = MixOptions(
        run.model.seq_length,
        run.train.seed_of_data,
        data.last_epoch_cutoff,
        data.blend_in_corpus,
        data.shuffle_in_corpus,
        vocab_size=run.model.vocab_size,
        masked=masked,
        growing=data.sample_order == "growing",
    )
    plans: Plans = dict.fromkeys(SPLITS)
    held_out = [data.held_out(split) for split in SPLITS[1:]]
    apart = any(each.text and each.is_path for each in held_out)
    for number, split in enumerate(SPLITS):
        if not samples[split]:
            continue
        own = data.held_out(split) if split != "train" else HeldOut("", "", is_path=False)
        name = own.text
        given = read_held_out(own) if name else shards
        mine = [shard for shard in given if shard.weight > 0]
        allow_open_files(_FILES_OF_SHARD * len(mine))
        sources = _sources(run, mine, None if name else number, files)
        used = [source for source in sources if source.documents]
        _check_split(run, split, sources, name, files)
        plain = own.is_path if name else bool(data.path)
        # Megatron-core ignores the weight of a single file where splits have paths of their own.
        weighted = not plain or (has_weights(name or data.path) and not (apart and len(given) == 1))
        if not weighted and len(used) > 1:
            used = _with_samples(split, used, options, files)
        plans[split] = plan_mix(used, samples[split], replace(options, plain=plain, weighted=weighted))
    return plans


def read_held_out(own: HeldOut) -> list[Shard]:
    """Return the files of a split that has files of its own.

    Raises:
        DataError: a list cannot be read, or a path is not understood.
    """
    if own.is_path:
        return parse_data_path(own.text, name=own.variable)
    return read_file_list(Path(own.text), name=own.variable)


def _with_samples(split: str, sources: Sequence[Source], options: MixOptions, files: Files) -> list[Source]:
    """Return those sources that hold a sample, with the exact number of their tokens, or samples of sentences.

    Raises:
        DataError: one to train on holds none.
    """
    seq_length, masked = options.seq_length, options.masked
    if masked:
        holding = [each for each in sources if holds_sample(files.open(each.prefix), each.documents, masked)]
        return [replace(each, samples=count_samples(each, masked, options.seed)) for each in holding]
    exact = [replace(source, tokens=_count_tokens([source], sys.maxsize, files)) for source in sources]
    short = [source for source in exact if source.tokens <= seq_length]
    if short and (split == "train" or len(short) == len(exact)):
        raise DataError(
            f"{split}: {short[0].prefix} has {short[0].tokens} tokens there, less than one sample of SEQ + 1 = "
            f"{seq_length + 1}; remove it from DATA_PATH, lower SEQ, or use DATA_PATH='WEIGHT PREFIX WEIGHT PREFIX ...'"
        )
    return [source for source in exact if source.tokens > seq_length]


def _sources(run: RunConfig, shards: Sequence[Shard], number: int | None, files: Files) -> list[Source]:
    """Return what each file gives to the split ``number`` of :data:`SPLITS`; None: files of its own, all of them."""
    found = []
    for shard in shards:
        file = files.open(shard.prefix)
        count = _count_documents(run, file)
        documents = range(count)
        if number is not None:
            documents = split_documents(run.data.shares(), count, run.data.split_rule)[number]
        tokens = round(file.num_tokens * len(documents) / max(1, count))
        found.append(Source(shard.weight, file.prefix, shard.corpus, Stamp.of(file.prefix), documents, tokens))
    return found


def _count_documents(run: RunConfig, file: TokenFile) -> int:
    """Return how many documents are split: of a causal model sequences, as in Megatron."""
    return file.num_documents if MaskedOptions.of(run) else len(file)


def allow_open_files(count: int) -> None:
    """Let this process keep ``count`` more files open, as far as its hard limit allows.

    An open file keeps a descriptor; lists of 2400 pairs exist, and the usual soft limit is 1024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _FILES_BESIDE_DATA
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise DataError(
            f"the data list needs {wanted} open files, the limit is {hard}; raise `ulimit -Hn` or use a shorter list"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _check_split(run: RunConfig, split: str, sources: Sequence[Source], name: str, files: Files) -> None:
    samples, shares = samples_of(run)[split], run.data.shares()
    split_of = "split {:g},{:g},{:g} (train,valid,test)".format(*shares)
    setting = {"train": "TRAIN_SPLIT", "valid": "VAL_SPLIT", "test": "TEST_SPLIT"}[split]
    cure = {"train": "", "valid": ", or EVAL_INTERVAL=0 for no validation", "test": ", or 0 for no test"}[split]
    more = f"raise {'its share in SPLIT' if run.data.split else setting}{cure}"
    empty = [source for source in sources if not source.documents]
    if empty and (split == "train" or len(empty) == len(sources)):
        total = sum(_count_documents(run, files.open(source.prefix)) for source in sources)
        first = empty[0].prefix
        count = _count_documents(run, files.open(first))
        where = f"{first} ({count} documents)" if split == "train" else f"{total} documents"
        raise DataError(
            f"{split}: {samples} samples are needed, but the {split_of} leaves no document of {where}; "
            f"{more}, or use files with more documents"
        )
    if masked := MaskedOptions.of(run):
        used = [source for source in sources if source.documents]
        opened = [files.open(source.prefix) for source in used]
        if not run.train.force:
            check_split_into_sentences(opened, run.model.family)
        return check_has_sample(split, used, masked, opened)
    least = run.model.seq_length + 1
    if (tokens := _count_tokens(sources, least, files)) < least:
        what = f"{name}: lower SEQ, or list more data" if name else f"{more}, lower SEQ, or use more data"
        raise DataError(f"{split}: {tokens} tokens are less than one sample of SEQ + 1 = {least}; {what}")


def _count_tokens(sources: Sequence[Source], enough: int, files: Files) -> int:
    """Return the tokens of the sources, or when there are more, at least ``enough``."""
    total = 0
    for source in sources:
        lengths, documents = files.open(source.prefix).length_row, source.documents
        for first in range(documents.start, documents.stop, _LENGTHS):
            total += int(lengths.read(first, min(first + _LENGTHS, documents.stop)).sum(dtype=np.int64))
            if total >= enough:
                return total
    return total


def data_fingerprint(shards: Sequence[Shard], files: Iterable[FileRecipe]) -> str:
    """Return what differs when a weight, a corpus, a file's name or a file's size does: a resumed run compares it.

    The folders and the times of the files do not count: data may be copied to a faster disk.
    """
    used = [shard for shard in shards if shard.weight > 0]
    total = sum(shard.weight for shard in used)
    sizes = {file.prefix: (file.stamp.index_bytes, file.stamp.token_bytes) for file in files}
    rows = [
        (f"{shard.weight / total:.12g}", os.path.basename(shard.prefix), shard.corpus, sizes.get(shard.prefix))
        for shard in used
    ]
    return hashlib.blake2b(json.dumps(rows).encode(), digest_size=8).hexdigest()
