"""Settings of the data: what is read, how it is split and mixed, and with which tokenizer."""

from __future__ import annotations

from typing import Literal, NamedTuple

from megads.config.setting import Section, setting

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
        "",
        env="DATA_FILE_LIST",
        flags={"--data-file-list": None},
        help="lines of WEIGHT PREFIX CORPUS; empty: the demo corpus",
    )
    path: str = setting(
        "",
        env="DATA_PATH",
        flags={"--data-path": None, "--train-data-path": None},
        words=True,
        help="one prefix, or WEIGHT PREFIX WEIGHT PREFIX ...; instead of DATA_FILE_LIST",
    )
    valid_file_list: str = setting(
        "",
        env="VALID_DATA_FILE_LIST",
        help="files to validate on, in full; empty: VAL_SPLIT of the data",
    )
    test_file_list: str = setting(
        "", env="TEST_DATA_FILE_LIST", help="files of the final test, in full; empty: TEST_SPLIT of the data"
    )
    valid_path: str = setting(
        "",
        env="VALID_DATA_PATH",
        flags={"--valid-data-path": None},
        words=True,
        help="files to validate on, in full, in the form of DATA_PATH; instead of VALID_DATA_FILE_LIST",
    )
    test_path: str = setting(
        "",
        env="TEST_DATA_PATH",
        flags={"--test-data-path": None},
        words=True,
        help="files of the final test, in full, in the form of DATA_PATH; instead of TEST_DATA_FILE_LIST",
    )
    train_split: float = setting(990.0, env="TRAIN_SPLIT", help="share of documents to train on", ge=0)
    val_split: float = setting(10.0, env="VAL_SPLIT", help="share of documents to validate on", ge=0)
    test_split: float = setting(0.0, env="TEST_SPLIT", help="share of documents kept for the final test", ge=0)
    split: str = setting(
        "",
        env="SPLIT",
        flags={"--split": None, "--train-data-path": "100,0,0"},
        help="the three shares in one, e.g. 969,30,1; instead of TRAIN_SPLIT, VAL_SPLIT and TEST_SPLIT",
    )
    split_rule: Literal["core", "legacy"] = setting(
        "core",
        env="SPLIT_RULE",
        help="how the boundaries of the splits are rounded: Megatron-core's, or older Megatron's",
    )
    blend_in_corpus: bool = setting(
        False,
        env="BLEND_SAMPLE_IN_CORPUS",
        flags={"--blend-sample-in-corpus": True},
        help="blend the files of a corpus by weight; else they are concatenated",
    )
    shuffle_in_corpus: bool = setting(
        True,
        env="SHUFFLE_SAMPLE_IN_CORPUS",
        flags={"--shuffle-sample-in-corpus": True},
        help="shuffle the samples of a corpus across its files",
    )
    last_epoch_cutoff: float = setting(
        0.80,
        env="LAST_EPOCH_CUTOFF",
        help="a last epoch that is used by less than this fraction is shuffled separately; 0.95 in "
        "BigScience's Megatron-DeepSpeed",
        ge=0,
        le=1,
    )
    tokenizer_type: TokenizerType = setting(
        "HFTokenizer",
        env="TOKENIZER_TYPE",
        flags={"--tokenizer-type": None},
        help="kind of tokenizer; NullTokenizer: ids up to VOCAB_SIZE",
    )
    tokenizer_model: str = setting(
        "",
        env="TOKENIZER_MODEL",
        flags={"--tokenizer-model": None, "--tokenizer-name-or-path": None},
        help="file or folder of the tokenizer; empty: the demo's own",
    )
    vocab_file: str = setting(
        "",
        env="VOCAB_FILE",
        flags={"--vocab-file": None, "--vocab": None},
        help="GPT2BPETokenizer: vocab.json; BertWordPiece: vocab.txt",
    )
    merge_file: str = setting(
        "",
        env="MERGE_FILE",
        flags={"--merge-file": None},
        help="GPT2BPETokenizer: merges.txt; empty: in the same folder",
    )
    vocab_extra_ids: int = setting(
        0,
        env="VOCAB_EXTRA_IDS",
        flags={"--vocab-extra-ids": None},
        help="tokens <extra_id_N> added to a WordPiece or SentencePiece vocabulary",
        ge=0,
    )
    eod_mask_loss: bool = setting(
        False,
        env="EOD_MASK_LOSS",
        flags={"--eod-mask-loss": True},
        help="what follows an end-of-document token does not count in the loss",
    )
    reset_position_ids: bool = setting(
        False,
        env="RESET_POSITION_IDS",
        flags={"--reset-position-ids": True},
        help="positions restart after an end-of-document token",
    )
    reset_attention_mask: bool = setting(
        False,
        env="RESET_ATTENTION_MASK",
        flags={"--reset-attention-mask": True},
        help="a token attends to its own document only",
    )
    num_workers: int = setting(
        2,
        env="NUM_WORKERS",
        flags={"--num-workers": None},
        help="prefetch threads per rank; 0: none, the step reads its data",
        ge=0,
        le=64,
    )
    cache_dir: str = setting(
        ".cache/megads", env="DATA_CACHE_PATH", flags={"--data-cache-path": None}, help="demo corpus and sample indices"
    )
    demo_vocab_size: int = setting(
        2048, env="DEMO_VOCAB_SIZE", help="of the tokenizer trained on the demo corpus", ge=512
    )
    demo_bytes: int = setting(12_000_000, env="DEMO_BYTES", help="text in the demo corpus, at most", unit="bytes", gt=0)

    def held_out(self, split: str) -> HeldOut:
        """Return where ``split`` comes from, "valid" or "test"."""
        lists = {
            "valid": (self.valid_file_list, self.valid_path),
            "test": (self.test_file_list, self.test_path),
        }
        listed, path = lists[split]
        kind = "DATA_PATH" if path else "DATA_FILE_LIST"
        return HeldOut(path or listed, f"{split.upper()}_{kind}", bool(path))
