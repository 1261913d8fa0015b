"""The order that is the same for every longer plan."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from megads.data.formats.token_file import open_dataset
from megads.data.samples.gpt import GPTRecipe, GPTSamples, Stamp
from megads.data.samples.growing import EpochwiseRecipe, most_taken
from megads.data.samples.mix import Mix, MixOptions, Source, plan_mix
from tests.data.factory import write_dataset
from tests.data.samples.in_memory import blend_index, hold

GROWING = MixOptions(seq_length=4, seed=1234, growing=True)
TOKENS = 601


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return four files; file ``i`` holds the tokens 1000 i .. 1000 i + 999, so a sample tells its file."""
    folder = tmp_path_factory.mktemp("growing")
    lengths = [30] * 19 + [TOKENS - 30 * 19]
    return [write_dataset(folder, lengths, 9000, None, f"f{i}", 1000 * i) for i in range(4)]


def recipe(prefix, count, kind=EpochwiseRecipe, seq=4, seed=7):
    return kind(prefix, Stamp.of(prefix), 0, 20, seq, count, seed)


def samples(prefix, count, kind=EpochwiseRecipe, seq=4):
    return GPTSamples(open_dataset(prefix), hold(recipe(prefix, count, kind, seq)), seq)


@pytest.mark.parametrize("seq", [4, 7, 640])
def test_more_epochs_begin_with_the_samples_of_fewer(files, seq):
    longest = samples(files[0], 9 * TOKENS // seq, seq=seq)
    rows = [longest[i].tolist() for i in range(len(longest))]
    for count in (1, TOKENS // seq // 2, TOKENS // seq + 1, 3 * TOKENS // seq, 8 * TOKENS // seq):
        fewer = samples(files[0], max(1, count), seq=seq)
        assert count <= len(fewer) <= len(rows)
        assert [fewer[i].tolist() for i in range(len(fewer))] == rows[: len(fewer)]


def test_the_first_epoch_has_megatron_s_order(files):
    plain, mine = (samples(files[0], 100, kind) for kind in (GPTRecipe, EpochwiseRecipe))
    assert [mine[i].tolist() for i in range(len(mine))] == [plain[i].tolist() for i in range(len(plain))]


def test_every_epoch_has_every_token_once_in_another_order(files):
    """600 tokens and one: epochs of 150 samples, of which the first token of the next one closes the last."""
    order = samples(files[0], 3 * 150 - 1)
    inputs = [np.concatenate([order[i][:-1] for i in range(150 * epoch, 150 * (epoch + 1))]) for epoch in range(3)]
    whole = Counter(open_dataset(files[0]).get(document)[at] for document in range(20) for at in range(30)
                    if at < len(open_dataset(files[0]).get(document)))  # fmt: skip
    for epoch in inputs:
        assert sum((Counter(epoch.tolist()) - whole).values()) <= 3  # epochs are shifted by a token each
    assert len({epoch.tobytes() for epoch in inputs}) == 3


def sources(files, weights, corpora):
    return [
        Source(weight, prefix, corpus, Stamp.of(prefix), range(20), TOKENS)
        for weight, prefix, corpus in zip(weights, files, corpora, strict=True)
    ]


def mixed(found, size, **options):
    return Mix(plan_mix(found, size, replace(GROWING, **options)), hold, open_dataset)


@pytest.mark.parametrize("options", [{}, {"plain": True}, {"plain": True, "weighted": False}], ids=str)
@pytest.mark.parametrize("case", range(6))
def test_a_longer_plan_of_a_mixture_begins_with_the_shorter_one(files, case, options):
    drawn = random.Random(case)
    weights = [drawn.choice([1e-4, 0.3, 1, 2.5, 7]) for _ in files]
    found = sources(files, weights, [drawn.choice("abc") for _ in files])
    longest = mixed(found, 3000, **options)
    rows = [longest[i].tolist() for i in range(3000)]
    for size in (1, 2, drawn.randint(3, 500), drawn.randint(500, 2999)):
        mix = mixed(found, size, **options)
        assert len(mix) == size
        assert [mix[i].tolist() for i in range(size)] == rows[:size]


def test_files_and_corpora_have_their_shares_of_every_prefix(files):
    weights = [1.0, 3.0, 2.0, 2.0]
    mix = mixed(sources(files, weights, "aabc"), 1200)
    taken: Counter[int] = Counter()
    for i in range(1200):
        taken[int(mix[i][0]) // 1000] += 1
        for number, weight in enumerate(weights):
            assert abs(taken[number] - weight / 8 * (i + 1)) < 3
    assert mix.corpus_of(0) in "abc"


@pytest.mark.parametrize("case", range(20))
def test_no_dataset_gives_more_than_it_was_asked_for(case):
    drawn = np.random.default_rng(case)
    shares = drawn.dirichlet(np.full(drawn.integers(2, 60), 0.3)) + 1e-9
    shares /= shares.sum()
    size = int(drawn.integers(1, 5000))
    datasets, _ = blend_index(shares.tolist(), size)
    for share, count in zip(shares, np.bincount(datasets, minlength=len(shares)), strict=True):
        assert count <= most_taken(float(share), size)


def test_a_plan_of_megatron_s_order_does_not_begin_alike(files):
    """What the option is for: without it a longer plan is another order."""
    found = sources(files, [1, 1, 2, 3], "aabb")
    short, long = (mixed(found, size, growing=False) for size in (200, 1500))
    assert [short[i].tolist() for i in range(200)] != [long[i].tolist() for i in range(200)]
