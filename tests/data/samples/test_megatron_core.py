"""Megatron-core's own classes and compiled helpers give the same indices, number by number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megads.config.settings.data import parse_split
from megads.data.formats.token_file import open_dataset
from megads.data.samples.gpt import GPTRecipe, GPTSamples, Stamp
from megads.data.samples.split import split_documents
from tests.data.factory import write_dataset
from tests.data.samples.in_memory import blend_index, collect, hold
from tests.data.samples.upstream import megatron_core

CASES = 200
BLOCK = 20  # cases in one test


class _Tokenizer:
    """As much of a tokenizer as megatron-core's data sets ask of one."""

    vocab_size, eod, pad = 1000, 999, None
    unique_identifiers: dict[str, str] = {"class": "none"}  # noqa: RUF012


def _config(core: Any, seq_length: int, seed: int, cache: Path | None = None) -> Any:
    return core.GPTDatasetConfig(
        random_seed=seed,
        sequence_length=seq_length,
        blend=None,
        blend_per_split=None,
        split="1,0,0",
        path_to_cache=None if cache is None else str(cache),
        tokenizer=_Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )


def _dataset(core: Any, prefix: str, documents: range, wanted: int | None, config: Any) -> Any:
    whole = core.IndexedDataset(prefix)
    indices = np.arange(documents.start, documents.stop, dtype=np.int32)
    return core.GPTDataset(whole, prefix, indices, wanted, core.Split.train, config)


@pytest.mark.parametrize("block", range(CASES // BLOCK))
def test_gpt_index_and_samples(tmp_path, block):
    core = megatron_core()
    dice = np.random.RandomState(block)
    prefix = write_dataset(tmp_path, dice.randint(1, 60, 40).tolist(), 1000)
    for case in range(BLOCK):
        first, last = sorted(dice.choice(41, 2, replace=False).tolist())
        seq_length, seed = int(dice.randint(2, 30)), int(dice.randint(0, 2**31))
        wanted = None if case == 0 else int(dice.randint(1, 400))
        theirs = _dataset(core, prefix, range(first, last), wanted, _config(core, seq_length, seed, tmp_path / "c"))
        recipe = GPTRecipe(prefix, Stamp.of(prefix), first, last, seq_length, wanted, seed)
        arrays = collect(recipe)
        for name in ("document_index", "sample_index", "shuffle_index"):
            assert np.array_equal(arrays[name], getattr(theirs, name)), (block, case, name)
            assert arrays[name].dtype == getattr(theirs, name).dtype
        ours = GPTSamples(open_dataset(prefix), hold(recipe), seq_length)
        assert len(ours) == len(theirs)
        for i in dice.choice(len(ours), min(3, len(ours))).tolist():
            sample = theirs[i]
            assert ours[i][:-1].tolist() == sample["tokens"].tolist()
            assert ours[i][1:].tolist() == sample["labels"].tolist()


@pytest.mark.parametrize("block", range(CASES // BLOCK))
def test_blending(block):
    core = megatron_core()
    dice = np.random.RandomState(block)
    for case in range(BLOCK):
        count = int(dice.randint(1, 12))
        weights = [
            dice.rand(count) + 1e-9,
            dice.randint(1, 9, count).astype(float),
            np.ones(count),
            dice.rand(count) ** 8 + 1e-12,
        ][case % 4]
        size = int(dice.choice([7, 300, 5000]))
        shares = (weights / sum(weights.tolist())).tolist()
        datasets, samples = np.zeros(size, np.int16), np.zeros(size, np.int64)
        core.build_blending_indices(datasets, samples, np.array(shares), count, size, False)
        ours = blend_index(weights.tolist(), size)
        assert np.array_equal(ours[0], datasets), (block, case)
        assert np.array_equal(ours[1], samples), (block, case)


@pytest.mark.parametrize("block", range(CASES // BLOCK))
def test_split(block):
    core = megatron_core()
    dice = np.random.RandomState(block)
    for case in range(BLOCK):
        shares = dice.randint(1, 1000, 3) * (dice.rand(3) < 0.8)
        shares[dice.randint(3)] += 1
        text = ", ".join(str(share / 10 if case % 2 else share) for share in shares)
        n = int(dice.choice([1, 2, 3, 10, 999, 10**6 + 1]))
        matrix = core.convert_split_vector_to_split_matrix(core.parse_and_normalize_split(text))
        theirs = [
            range(0) if border is None else range(round(border[0] * float(n)), round(border[1] * float(n)))
            for border in matrix
        ]
        ours = split_documents(parse_split(text), n)
        assert [list(each)[:3] for each in ours] == [list(each)[:3] for each in theirs], (text, n)
        assert [len(each) for each in ours] == [len(each) for each in theirs], (text, n)


def test_their_description_names_what_decides_an_index(tmp_path):
    """Whatever megatron-core puts in its key and this program lacks would be a stale index."""
    core = megatron_core()
    prefix = write_dataset(tmp_path, [30] * 4, 1000)
    theirs = _dataset(core, prefix, range(4), 5, _config(core, 8, 1, tmp_path / "c"))
    known = {
        *("class", "dataset_path", "num_samples", "index_split", "random_seed", "sequence_length"),
        *("split", "split_matrix"),  # the documents they give are in ours
        *("tokenizer", "drop_last_partial_validation_sequence", "add_extra_token_to_sequence"),  # fixed here
    }
    assert set(json.loads(theirs.unique_description)) <= known
