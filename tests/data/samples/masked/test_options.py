"""Runs of BERT and T5 get the samples that Megatron-core's builder gives for the same words, end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from megads.config.schema import RunConfig
from megads.data.datasets import SPLITS, build_splits, read_shards, samples_of
from megads.data.loading.batches import Batches
from megads.data.samples.masked.options import MaskedOptions
from megads.data.samples.masked.rows import BertRow, T5Row
from megads.data.tokenizers.build import load_tokenizer
from megads.errors import DataError
from tests.data.samples.masked.corpora import FIRST, TOKENS, masked_run, write_sentence_file, write_vocab
from tests.data.samples.upstream import megatron_core

BLENDS = {
    "one file": ("{0}", "8,1,1"),
    "one with a weight": ("3 {1}", "969,30,10"),
    "weights": ("0.3 {0} 0.7 {1} 0.1 {0}", "8,1,1"),
}
KINDS = {"bert": ("bert", {}), "bert without head": ("bert", {"binary_head": False}), "t5": ("t5", {})}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("sentences")


@pytest.fixture(scope="module")
def files(folder) -> list[str]:
    return [write_sentence_file(folder, count, count, f"f{count}_sentence") for count in (60, 150)]


@pytest.fixture
def alone():
    """A process group of this process, which Megatron-core asks for its rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def theirs(run: RunConfig, folder: Path) -> list[Any]:
    """Return what Megatron-core builds for train, validation and test."""
    core, tokenizer = megatron_core(), load_tokenizer(run)
    specials, bert = tokenizer.specials, run.model.family == "bert"

    class Vocabulary:
        vocab_size, unique_identifiers = tokenizer.vocab_size, {"class": "words"}
        cls, sep, mask, pad = specials.cls, specials.sep, specials.mask, specials.pad
        bos, eos, additional_special_tokens_ids = specials.bos, specials.eos, list(specials.extra)
        inv_vocab = {number: token for token, number in tokenizer.vocab.items()}  # noqa: RUF012

    more: dict[str, Any] = {"masking_max_ngram": 3, "masking_use_geometric_distribution": False}
    more["classification_head"] = run.model.binary_head
    if not bert:
        more = {"masking_max_ngram": 10, "masking_use_geometric_distribution": True}
        more |= {"sequence_length_decoder": 16}
    config = (core.BERTMaskedWordPieceDatasetConfig if bert else core.T5MaskedWordPieceDatasetConfig)(
        random_seed=run.train.seed,
        sequence_length=24,
        blend=core.get_blend_from_list(run.data.path.split()),
        split=run.data.split,
        path_to_cache=str(folder / "cache"),
        tokenizer=Vocabulary(),
        masking_probability=run.data.mask_prob,
        short_sequence_probability=run.data.short_seq_prob,
        masking_do_full_word=True,
        masking_do_permutation=False,
        masking_use_longer_ngrams=False,
        **more,
    )
    sizes, kind = samples_of(run), core.BERTMaskedWordPieceDataset if bert else core.T5MaskedWordPieceDataset
    return core.BlendedMegatronDatasetBuilder(kind, [sizes[split] for split in SPLITS], lambda: True, config).build()


def _row_of_bert(sample: dict[str, Any]) -> list[int]:
    numbers = [*sample["text"], *sample["types"], *sample["labels"], (sample["text"] != 0).sum(), sample["is_random"]]
    return [int(each) for each in numbers]


def _row_of_t5(sample: dict[str, Any]) -> list[int]:
    ends = [sample["enc_mask"].sum(), sample["dec_mask"].sum()]
    return [int(each) for each in [*sample["text_enc"], *sample["text_dec"], *sample["labels"], *ends]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blend", BLENDS)
@pytest.mark.usefixtures("alone")
def test_samples_of_a_run_are_megatron_cores(files, folder, kind, blend):
    family, model = KINDS[kind]
    words, split = BLENDS[blend]
    train = {"train_iters": 20, "global_batch": 4, "eval_iters": 1, "seed": 77}
    run = masked_run(family, words.format(*files), write_vocab(folder), model, train=train, data={"split": split})
    ours, expected = build_splits(run, read_shards(run)), theirs(run, folder)
    for name, core in zip(SPLITS, expected, strict=True):
        mine = ours[name]
        assert mine is not None
        assert len(mine) <= len(core)
        for i in range(len(mine)):
            row = (_row_of_bert if family == "bert" else _row_of_t5)(core[i])
            assert mine[i].tolist() == row, (name, i)
        assert mine.width == len(mine[0])


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_a_step_reads_the_same_rows_on_any_number_of_ranks(files, folder, family):
    run = masked_run(family, f"1 {files[0]} 2 {files[1]}", write_vocab(folder), train={"global_batch": 8})
    data = build_splits(run, read_shards(run))["train"]
    expected = np.stack([data[i] for i in range(16)])
    for data_size, micro_batch in [(1, 8), (2, 2), (4, 1)]:
        again = build_splits(run, read_shards(run))["train"]
        ranks = [Batches(again, micro_batch, rank, data_size) for rank in range(data_size)]
        blocks = range(0, 16, micro_batch * data_size)
        got = [rank.read(consumed).numpy() for consumed in blocks for rank in ranks]
        assert np.array_equal(np.concatenate(got), expected)


def test_another_share_to_hide_gives_other_rows_of_the_same_map(files, folder):
    rows = []
    for share in (0.15, 0.5):
        run = masked_run("bert", files[0], write_vocab(folder), data={"mask_prob": share})
        rows.append(build_splits(run, read_shards(run))["train"][0])
    parts = BertRow(24)
    hidden = [int((row[parts.labels] >= 0).sum()) for row in rows]
    assert hidden[0] < hidden[1]
    assert rows[0][parts.length] == rows[1][parts.length]


def test_options_follow_from_the_family():
    assert MaskedOptions.of(masked_run("gpt", "x", Path("v"))) is None
    bert = MaskedOptions.of(masked_run("bert", "x", Path("v")))
    assert (bert.max_length, bert.min_sentences, bert.parts) == (21, 2, BertRow(24))
    assert MaskedOptions.of(masked_run("bert", "x", Path("v"), {"binary_head": False})).min_sentences == 1
    t5 = MaskedOptions.of(masked_run("t5", "x", Path("v")))
    assert (t5.max_length, t5.min_sentences, t5.parts) == (22, 1, T5Row(24, 16))


def test_what_does_not_fit_names_the_file(files, folder):
    run = masked_run("t5", files[0], write_vocab(folder), {"decoder_seq_length": 3})
    data = build_splits(run, read_shards(run))["train"]
    with pytest.raises(DataError, match=r"f60_sentence: a sample of \d+ and \d+ tokens does not fit an encoder of 24"):
        [data[i] for i in range(len(data))]
    few = masked_run("bert", files[0], write_vocab(folder))
    known = build_splits(few, read_shards(few))["train"]
    assert known[0].max() < len(TOKENS)


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_a_model_that_knows_fewer_tokens_than_a_row_holds_is_refused(files, folder, family):
    run = masked_run(family, files[0], write_vocab(folder), {"vocab_size": FIRST})
    data = build_splits(run, read_shards(run))["train"]
    with pytest.raises(
        DataError, match=rf"{files[0]}: its sample \d+ holds token \d+, but the model knows {FIRST} tok"
    ):
        data[0]
