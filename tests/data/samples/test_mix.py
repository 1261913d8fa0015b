from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from megads.data.formats.token_file import open_dataset
from megads.data.samples.gpt import GPTSamples, Stamp
from megads.data.samples.mix import Mix, MixOptions, Source, plan_mix, requested_samples
from megads.errors import DataError
from tests.data.factory import write_dataset
from tests.data.samples.in_memory import blend_index, hold

MANNER = MixOptions(seq_length=4, seed=1234)


def _sources(tmp_path, weights: list[float], corpora: str) -> list[Source]:
    """File ``i`` holds the tokens 1000 i .. 1000 i + 999, so a sample tells its file."""
    found = []
    for i, weight in enumerate(weights):
        prefix = write_dataset(tmp_path, [30] * 20, 9000, None, f"f{i}", 1000 * i)
        found.append(Source(weight, prefix, corpora[i], Stamp.of(prefix), range(20), 600))
    return found


def _mix(sources: list[Source], size: int, options: MixOptions = MANNER) -> Mix:
    return Mix(plan_mix(sources, size, options), hold, open_dataset)


def _files(sources: list[Source], counts: list[int]) -> list[GPTSamples]:
    """The samples of each file, in its own order."""
    plans = [
        plan_mix([source], count, replace(MANNER, plain=True, weighted=False))
        for source, count in zip(sources, counts, strict=True)
    ]
    return [
        GPTSamples(open_dataset(plan.corpora[0].files[0].prefix), hold(plan.corpora[0].files[0]), 4) for plan in plans
    ]


def _shuffled(count: int) -> list[int]:
    order = np.arange(count)
    np.random.RandomState(MANNER.seed).shuffle(order)
    return order.tolist()


def test_requests_follow_megatrons_formula():
    assert requested_samples([1, 3], 1000) == [252, 754]
    assert requested_samples([0.3, 0.7], 10) == [4, 8]


def test_one_corpus_is_its_files_laid_end_to_end_and_shuffled_once(tmp_path):
    sources = _sources(tmp_path, [1, 3], "aa")
    mix = _mix(sources, 100)
    files = _files(sources, [26, 76])
    row = [files[0][i].tolist() for i in range(26)] + [files[1][i].tolist() for i in range(76)]
    assert [mix[i].tolist() for i in range(100)] == [row[j] for j in _shuffled(102)[:100]]
    plain = _mix(sources, 100, replace(MANNER, shuffle_in_corpus=False))
    assert [plain[i].tolist() for i in range(100)] == row[:100]


def test_files_of_a_corpus_are_blended_by_the_samples_asked_of_them(tmp_path):
    sources = _sources(tmp_path, [1, 3], "aa")
    files = _files(sources, [26, 76])
    datasets, samples = blend_index([26, 76], 102)
    row = [files[d][i].tolist() for d, i in zip(datasets.tolist(), samples.tolist(), strict=True)]
    mix = _mix(sources, 100, replace(MANNER, blend_in_corpus=True))
    assert [mix[i].tolist() for i in range(100)] == [row[j] for j in _shuffled(102)[:100]]
    plain = _mix(sources, 100, replace(MANNER, blend_in_corpus=True, shuffle_in_corpus=False))
    assert [plain[i].tolist() for i in range(100)] == row[:100]


def test_corpora_are_blended_by_their_samples_in_the_order_of_their_names(tmp_path):
    sources = _sources(tmp_path, [0.1, 0.5, 0.2, 0.2], "bacb")
    mix = _mix(sources, 200)
    taken_from = [int(mix[i][0]) // 1000 for i in range(200)]
    corpus_of = {0: 1, 1: 0, 2: 2, 3: 1}
    asked = [101, 21 + 41, 41]
    assert [corpus_of[file] for file in taken_from] == blend_index(asked, 200)[0].tolist()
    assert mix.corpora == ["b", "a", "c"]
    assert [mix.corpus_of(i) for i in range(200)] == ["bacb"[file] for file in taken_from]
    share = Counter(taken_from)
    assert share[1] + share[2] in range(138, 142)
    assert 15 <= share[0] <= 25


def test_a_path_is_blended_by_weight_and_not_shuffled(tmp_path):
    """As Megatron's --data-path: the files in their order, each in its own."""
    sources = _sources(tmp_path, [0.3, 0.7], "ba")
    mix = _mix(sources, 10, replace(MANNER, plain=True))
    files = _files(sources, [4, 8])
    taken = zip([1, 0, 1, 1, 0, 1, 1, 0, 1, 1], [0, 0, 1, 2, 1, 3, 4, 2, 5, 6], strict=True)
    assert [mix[i].tolist() for i in range(10)] == [files[d][j].tolist() for d, j in taken]
    assert [mix.corpus_of(i) for i in range(3)] == ["a", "b", "a"]


def test_a_path_of_one_file_is_that_file(tmp_path):
    sources = _sources(tmp_path, [1], "a")
    mix = _mix(sources, 400, replace(MANNER, plain=True, weighted=False))
    file = _files(sources, [400])[0]
    assert [mix[i].tolist() for i in range(400)] == [file[i].tolist() for i in range(400)]


@pytest.mark.parametrize("size", [1, 2, 7, 100, 1000])
@pytest.mark.parametrize("corpora", ["abcd", "aabb", "aaaa"])
@pytest.mark.parametrize("blend", [False, True])
def test_every_sample_of_any_size_is_there(tmp_path, size, corpora, blend):
    """The surplus suffices: no corpus and no file runs out."""
    sources = _sources(tmp_path, [0.5, 1e-9, 0.25, 3], corpora)
    mix = _mix(sources, size, replace(MANNER, blend_in_corpus=blend))
    assert len(mix) == size
    assert all(mix[i].shape == (5,) for i in range(size))
    for wrong in (-1, size):
        with pytest.raises(IndexError):
            mix[wrong]
        with pytest.raises(IndexError):
            mix.corpus_of(wrong)


def test_nothing_is_opened_before_a_sample_needs_it(tmp_path):
    opened: list[str] = []

    def note(prefix: str):
        opened.append(prefix)
        return open_dataset(prefix)

    sources = _sources(tmp_path, [1, 1e-6], "aa")
    mix = Mix(plan_mix(sources, 50, MANNER), hold, note)
    assert opened == []
    samples = [int(mix[i][0]) // 1000 for i in range(50)]
    assert opened == [sources[file].prefix for file in dict.fromkeys(samples)]


def test_id_the_model_does_not_know(tmp_path):
    mix = _mix(_sources(tmp_path, [1], "a"), 100, replace(MANNER, vocab_size=1))
    with pytest.raises(DataError, match=r"f0: its sample \d+ holds token \d+, but the model knows 1 tokens"):
        mix[0]
