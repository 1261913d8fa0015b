"""Settings of the data: what is read, how it is split and mixed, and with which tokenizer."""

from __future__ import annotations

import math
import re
from typing import Literal, NamedTuple

from megads.config.setting import Section, fraction, in_steps, setting
from megads.errors import ConfigError

TokenizerType = Literal[
    "HFTokenizer",
    "PretrainedFromHF",
    "GPT2BPETokenizer",
    "BertWordPieceLowerCase",
    "BertWordPieceCase",
    "SentencePieceTokenizer",
    "GPTSentencePieceTokenizer",
    "Llama2Tokenizer",
    "NullTokenizer",
]


class HeldOut(NamedTuple):
    """Where a split comes from that has files of its own; without them it has a share of the data."""

    text: str  # name of a list, or what DATA_PATH may be; empty: no files of its own
    variable: str  # the setting that says so
    is_path: bool


class DataConfig(Section):
    """What is read, and how it is split."""

    file_list: str = setting(
        "", "DATA_FILE_LIST --data-file-list", "lines of WEIGHT PREFIX CORPUS; empty: the demo corpus"
    )
    path: str = setting(
        "",
        "DATA_PATH --data-path --train-data-path",
        "one prefix, or WEIGHT PREFIX WEIGHT PREFIX ...; instead of DATA_FILE_LIST",
        words=True,
    )
    stages: str = setting(
        "",
        "DATA_STAGES",
        "YAML file of stages, each with its length, data, SEQ and learning rate; empty: one mixture for the whole run",
    )
    stage_table: str = setting("", "DATA_STAGE_TABLE", "set at launch: what DATA_STAGES holds, in steps and samples")
    valid_file_list: str = setting(
        "", "VALID_DATA_FILE_LIST", "files to validate on, in full; empty: VAL_SPLIT of the data"
    )
    test_file_list: str = setting(
        "", "TEST_DATA_FILE_LIST", "files of the final test, in full; empty: TEST_SPLIT of the data"
    )
    valid_path: str = setting(
        "",
        "VALID_DATA_PATH --valid-data-path",
        "files to validate on, in full, in the form of DATA_PATH; instead of VALID_DATA_FILE_LIST",
        words=True,
    )
    test_path: str = setting(
        "",
        "TEST_DATA_PATH --test-data-path",
        "files of the final test, in full, in the form of DATA_PATH; instead of TEST_DATA_FILE_LIST",
        words=True,
    )
    train_split: float = setting(990.0, "TRAIN_SPLIT", "share of documents to train on", ge=0)
    val_split: float = setting(10.0, "VAL_SPLIT", "share of documents to validate on", ge=0)
    test_split: float = setting(0.0, "TEST_SPLIT", "share of documents kept for the final test", ge=0)
    split: str = setting(
        "",
        "SPLIT --split",
        "the three shares in one, e.g. 969,30,1; instead of TRAIN_SPLIT, VAL_SPLIT and TEST_SPLIT",
        flags={"--train-data-path": "100,0,0"},
    )
    split_rule: Literal["core", "legacy"] = setting(
        "core", "SPLIT_RULE", "how the boundaries of the splits are rounded: Megatron-core's, or older Megatron's"
    )
    blend_in_corpus: bool = setting(
        False,
        "BLEND_SAMPLE_IN_CORPUS --blend-sample-in-corpus",
        "blend the files of a corpus by weight; else they are concatenated",
    )
    shuffle_in_corpus: bool = setting(
        True, "SHUFFLE_SAMPLE_IN_CORPUS --shuffle-sample-in-corpus", "shuffle the samples of a corpus across its files"
    )
    sample_order: Literal["planned", "growing"] = setting(
        "planned",
        "SAMPLE_ORDER",
        "planned: Megatron's, made for the samples of the planned length; growing: the same for every longer run, each "
        "epoch of a file is shuffled separately and files are blended",
    )
    last_epoch_cutoff: float = setting(
        0.80,
        "LAST_EPOCH_CUTOFF",
        "a last epoch that is used by less than this fraction is shuffled separately; 0.95 in "
        "BigScience's Megatron-DeepSpeed",
        ge=0,
        le=1,
    )
    tokenizer_type: TokenizerType = setting(
        "HFTokenizer", "TOKENIZER_TYPE --tokenizer-type", "kind of tokenizer; NullTokenizer: ids up to VOCAB_SIZE"
    )
    tokenizer_model: str = setting(
        "",
        "TOKENIZER_MODEL --tokenizer-model --tokenizer-name-or-path",
        "file or folder of the tokenizer; empty: the demo's own",
    )
    vocab_file: str = setting(
        "", "VOCAB_FILE --vocab-file --vocab", "GPT2BPETokenizer: vocab.json; BertWordPiece: vocab.txt"
    )
    merge_file: str = setting("", "MERGE_FILE --merge-file", "GPT2BPETokenizer: merges.txt; empty: in the same folder")
    vocab_extra_ids: int = setting(
        0,
        "VOCAB_EXTRA_IDS --vocab-extra-ids",
        "tokens <extra_id_N> added to a WordPiece or SentencePiece vocabulary",
        ge=0,
    )
    eod_mask_loss: bool = setting(
        False, "EOD_MASK_LOSS --eod-mask-loss", "what follows an end-of-document token does not count in the loss"
    )
    reset_position_ids: bool = setting(
        False, "RESET_POSITION_IDS --reset-position-ids", "positions restart after an end-of-document token"
    )
    reset_attention_mask: bool = setting(
        False, "RESET_ATTENTION_MASK --reset-attention-mask", "a token attends to its own document only"
    )
    mask_prob: float = fraction(0.15, "MASK_PROB --mask-prob", "bert and t5: share of the tokens that is hidden")
    short_seq_prob: float = setting(
        0.1,
        "SHORT_SEQ_PROB --short-seq-prob",
        "bert and t5: share of the samples that are cut to a random length",
        ge=0,
        le=1,
    )
    retro_project_dir: str = setting(
        "",
        "RETRO_PROJECT_DIR --retro-project-dir --retro-workdir",
        "retro: folder that `megads retro build` has made; gives data, tokenizer, split, seed and SEQ",
    )
    retro_cyclic_train_iters: int = in_steps(
        0,
        "RETRO_CYCLIC_TRAIN_ITERS --retro-cyclic-train-iters",
        "retro: iterations of the run, in which samples with neighbours repeat; 0: none repeats",
    )
    retro_verify_neighbor_count: bool = setting(
        True,
        "RETRO_VERIFY_NEIGHBOR_COUNT",
        "retro: refuse a project that lacks the neighbours of some samples",
        flags={"--retro-no-verify-neighbor-count": False},
    )
    num_workers: int = setting(
        2, "NUM_WORKERS --num-workers", "prefetch threads per rank; 0: none, the step reads its data", ge=0, le=64
    )
    cache_dir: str = setting(".cache/megads", "DATA_CACHE_PATH --data-cache-path", "demo corpus and sample indices")
    demo_vocab_size: int = setting(2048, "DEMO_VOCAB_SIZE", "of the tokenizer trained on the demo corpus", ge=512)
    demo_bytes: int = setting(12_000_000, "DEMO_BYTES", "text in the demo corpus, at most", unit="bytes", gt=0)

    def held_out(self, split: str) -> HeldOut:
        """Return where ``split`` comes from, "valid" or "test"."""
        lists = {
            "valid": (self.valid_file_list, self.valid_path),
            "test": (self.test_file_list, self.test_path),
        }
        listed, path = lists[split]
        kind = "DATA_PATH" if path else "DATA_FILE_LIST"
        return HeldOut(path or listed, f"{split.upper()}_{kind}", bool(path))

    def shares(self) -> tuple[float, float, float]:
        """Return the shares of train, valid and test.

        A split with files of its own has none; what it would have had is trained on.

        Raises:
            ConfigError: ``SPLIT`` is not understood.
        """
        train, valid, test = (
            parse_split(self.split) if self.split else (self.train_split, self.val_split, self.test_split)
        )
        if self.held_out("valid").text:
            train, valid = train + valid, 0.0
        if self.held_out("test").text:
            train, test = train + test, 0.0
        return train, valid, test


_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def parse_split(text: str) -> tuple[float, float, float]:
    """Return the shares of train, valid and test of a text such as ``969,30,1``.

    One to three numbers, with commas, slashes or blanks between them; missing ones are 0.

    Raises:
        ConfigError: the text is not that, or all shares are 0.
    """
    words = re.split(r"[\s,/]+", text.strip().strip("[]()").strip())
    if not 1 <= len(words) <= 3 or not all(_NUMBER.fullmatch(word) for word in words):
        raise ConfigError(f"SPLIT={text}: expected the shares of train, valid and test, e.g. 969,30,1")
    shares = [*map(float, words), 0.0, 0.0][:3]
    if not (all(map(math.isfinite, shares)) and sum(shares) > 0):
        raise ConfigError(f"SPLIT={text}: at least one share must be positive, and none infinite")
    return shares[0], shares[1], shares[2]
