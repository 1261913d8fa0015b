"""Random ``DATA_PATH`` runs get the samples that Megatron-core's builder gives for the same words, end to end.

``MEGADS_TEST_SEED=N`` draws other runs, ``MEGADS_TEST_DRAWS=N`` more of them.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from megads.config.schema import RunConfig
from megads.data.datasets import SPLITS, Files, make_plans, read_shards, samples_of
from megads.data.formats.token_file import open_dataset
from megads.data.samples.mix import Mix
from megads.errors import DataError
from tests.data.factory import make_run, write_dataset
from tests.data.samples.in_memory import hold
from tests.data.samples.upstream import megatron_core

SEED = int(os.environ.get("MEGADS_TEST_SEED", "20261122"))
DRAWS = int(os.environ.get("MEGADS_TEST_DRAWS", "40"))
VOCAB = 200_000
LOOKED_AT = 150  # samples of a split


class _Tokenizer:
    vocab_size, eod, pad = VOCAB, VOCAB - 1, None
    unique_identifiers: dict[str, str] = {"class": "none"}  # noqa: RUF012


@dataclass(frozen=True)
class Drawn:
    """A run and the files it reads."""

    words: tuple[str, ...]  # of DATA_PATH
    split: str
    seed: int
    seq_length: int
    train_iters: int
    global_batch: int
    eval_iters: int

    def run(self) -> RunConfig:
        return make_run(
            model={"seq_length": self.seq_length, "vocab_size": VOCAB},
            train={
                "train_iters": self.train_iters,
                "global_batch": self.global_batch,
                "eval_iters": self.eval_iters,
                "seed": self.seed,
            },
            data={"path": " ".join(self.words), "split": self.split},
        )


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> dict[str, int]:
    """Files by prefix, with their numbers of documents; a token tells its file and its place there."""
    folder = tmp_path_factory.mktemp("corpora")
    dice = np.random.RandomState(7)
    return {
        write_dataset(folder, dice.randint(17, 29, documents).tolist(), VOCAB, None, f"f{i}", 100 * i): documents
        for i, documents in enumerate([30, 41, 60, 90, 150, 600, 2600])
    }


SPLIT_TEXTS = ("969,30,1", "949,50,1", "8,1,1", "90,10", "1", "0.7, 0.2, 0.1", "98,2,0", "3,3,3")
WEIGHTS = (
    lambda dice: repr(dice.random() + 1e-3),
    lambda dice: str(dice.randint(1, 9)),
    lambda dice: f"0.{dice.randint(1, 9)}",
    lambda dice: "1",
    lambda dice: repr(dice.random() ** 8 + 1e-6),
)


def draw(dice: random.Random, corpora: dict[str, int]) -> Drawn:
    """Return a random run: one or several files, with weights or without, of small and large sizes."""
    kind = dice.choice(["one", "one weighted", "several weighted", "several weighted", "several"])
    split = dice.choice(SPLIT_TEXTS)
    # Megatron-core loops forever over a share without documents.
    able = [prefix for prefix, documents in corpora.items() if _leaves_documents(split, documents)]
    files = [dice.choice(able) for _ in range(1 if "one" in kind else dice.randint(2, 9))]
    weight = dice.choice(WEIGHTS)
    words = [word for file in files for word in ((weight(dice), file) if "weighted" in kind else (file,))]
    large = kind != "several"  # without weights, Megatron-core gives no more than one epoch
    return Drawn(
        tuple(words),
        split,
        dice.choice([1234, dice.randrange(2**31)]),
        dice.choice([2, 5, 8, 16]),
        dice.randint(1, 60 if large else 12),
        dice.choice([1, 3, 4, 8, 16, 37] if large else [1, 2, 3, 4]),
        dice.randint(1, 9 if large else 2),
    )


def _leaves_documents(split: str, documents: int) -> bool:
    shares = np.array([float(share) for share in split.split(",")])
    ends = np.round(np.cumsum(shares / shares.sum()) * documents)
    return bool((np.diff(ends, prepend=0)[shares > 0] > 1).all())


def theirs(drawn: Drawn, sizes: list[int], blend_per_split: Any = None) -> list[Any]:
    """Return what Megatron-core builds for train, validation and test."""
    core = megatron_core()
    config = core.GPTDatasetConfig(
        random_seed=drawn.seed,
        sequence_length=drawn.seq_length,
        blend=None if blend_per_split else core.get_blend_from_list(list(drawn.words)),
        blend_per_split=blend_per_split,
        split=None if blend_per_split else drawn.split,
        path_to_cache=None,
        tokenizer=_Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    return core.BlendedMegatronDatasetBuilder(core.GPTDataset, sizes, lambda: True, config).build()


def _tokens(dataset: Any, i: int) -> list[int]:
    """Return the seq_length + 1 tokens of sample ``i``, without the masks that come with it."""
    if hasattr(dataset, "dataset_index"):
        dataset, i = dataset.datasets[dataset.dataset_index[i]], dataset.dataset_sample_index[i]
    return dataset._query_document_sample_shuffle_indices(i)[0].tolist()


def difference(drawn: Drawn) -> str:
    """Return where the samples of the run and Megatron-core's differ, "" for nowhere, or why it builds none."""
    run = drawn.run()
    wanted = samples_of(run)
    try:
        expected = theirs(drawn, [wanted[split] for split in SPLITS])
    except IndexError as error:  # its surplus did not suffice for the samples behind the last one needed
        return f"megatron-core: {error}"
    plans = make_plans(run, read_shards(run), Files())
    for split, core in zip(SPLITS, expected, strict=True):
        plan = plans[split]
        if plan is None:
            continue
        ours = Mix(plan, hold, open_dataset)
        if len(core) < len(ours):
            return f"megatron-core: {len(core)} of {len(ours)} samples, one epoch of {split}"
        for i in [*range(0, len(ours), 1 + len(ours) // LOOKED_AT), len(ours) - 1]:
            if ours[i].tolist() != _tokens(core, i):
                return f"{split}: sample {i} of {len(ours)} differs"
    return ""


@pytest.mark.parametrize("seed", [SEED])  # shown in the test's name
def test_drawn_runs(corpora, seed):
    equal = 0
    for number in range(seed, seed + DRAWS):
        drawn = draw(random.Random(number), corpora)
        found = difference(drawn)
        assert found == "" or "megatron-core" in found, (f"MEGADS_TEST_SEED={number}", found, drawn)
        equal += found == ""
    assert equal >= 0.95 * DRAWS


# What differed once: words of DATA_PATH with the number of a file in place of its prefix; split.
DIFFERED = [
    ("1 0", "3,3,3"),  # a single file with a weight is asked for the surplus, too
    ("9 1", "8,1,1"),
    ("0.910704 0 0.215698 1 0.086947 0 0.419171 2 0.24166 0 0.552047 0", "8,1,1"),  # rounded up twice
    ("0 1", "8,1,1"),  # without weights: one epoch of each, blended by samples
    ("0 1 2", "8,1,1"),
]


@pytest.mark.parametrize(("words", "split"), DIFFERED)
@pytest.mark.parametrize("batches", [3, 17])
def test_what_differed_once(corpora, words, split, batches):
    large = list(corpora)[-2:]
    weighted = "." in words or words[0] in "19"
    path = [word if weighted and not i % 2 else large[int(word) % 2] for i, word in enumerate(words.split())]
    assert difference(Drawn(tuple(path), split, 1234, 16, batches, 4, 2)) == ""


def test_more_than_an_epoch_without_weights(tmp_path):
    """Megatron-core would end; here the files are repeated, in proportion to their samples."""
    paths = [write_dataset(tmp_path, [21] * count, VOCAB, None, f"f{count}", 1000 * count) for count in (10, 30)]
    drawn = Drawn((*paths, paths[0]), "1", 1234, 5, 100, 4, 1)
    assert "one epoch of train" in difference(drawn)
    run = drawn.run()
    mix = Mix(make_plans(run, read_shards(run), Files())["train"], hold, open_dataset)
    tens = sum(int(mix[i][0]) < 30_000 for i in range(400))
    assert tens == pytest.approx(400 * 2 * 41 / (2 * 41 + 125), abs=2)


def test_a_file_without_a_sample(tmp_path):
    paths = [write_dataset(tmp_path, lengths, VOCAB, 0, f"f{len(lengths)}") for lengths in ([50] * 9, [4])]
    run = Drawn((*paths, paths[0]), "1", 1234, 5, 2, 2, 1).run()
    with pytest.raises(DataError, match=r"train: .*f1 has 4 tokens there, less than one sample of SEQ \+ 1 = 6"):
        make_plans(run, read_shards(run), Files())


@pytest.mark.parametrize("words", [("3",), ()])
def test_paths_of_their_own_for_each_split(corpora, words):
    """A single file's weight counts for nothing there."""
    core = megatron_core()
    train, valid = list(corpora)[1:3]
    drawn = Drawn((*words, train), "1", 1234, 16, 61, 16, 9)
    run = drawn.run()
    run = run.model_copy(update={"data": run.data.model_copy(update={"valid_path": " ".join([*words, valid])})})
    blends = [core.get_blend_from_list([*words, prefix]) for prefix in (train, valid)]
    wanted = samples_of(run)
    expected = theirs(drawn, [wanted[split] for split in SPLITS], blend_per_split=[*blends, None])
    plans = make_plans(run, read_shards(run), Files())
    for split, dataset in zip(SPLITS, expected[:2], strict=False):
        ours = Mix(plans[split], hold, open_dataset)
        assert [ours[i].tolist() for i in range(len(ours))] == [_tokens(dataset, i) for i in range(len(ours))]
