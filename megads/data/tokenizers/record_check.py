"""Refuses data that was made with another tokenizer than the run's.

What made a data set is in the record next to it (``<prefix>.info.json``); files of other tools have none and are taken
as they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from megads.config.schema import RunConfig
from megads.data.formats.record import Record, read_record
from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import identity, spec_of
from megads.errors import DataError

_THREADS = 16  # a record is small and its file system may be slow to answer


def check_record(run: RunConfig, prefixes: Iterable[str | os.PathLike[str]]) -> None:
    """Check that every data set with a record was made with the run's tokenizer; with ``run.train.force`` do nothing.

    A run without a tokenizer (NullTokenizer) takes data of any one tokenizer; the end of documents has to be the
    same id where a setting asks for it.

    Raises:
        DataError: a data set was made with another tokenizer than the run's or than another data set, or its record
            cannot be understood.
    """
    if run.train.force:
        return
    names = [os.fspath(prefix) for prefix in prefixes]
    with ThreadPoolExecutor(_THREADS) as pool:
        found = zip(names, pool.map(read_record, names), strict=True)
        known = [(name, record) for name, record in found if record is not None]
    if not known:
        return
    first_name, first = known[0]
    for name, record in known:
        if record.tokenizer != first.tokenizer:
            raise DataError(
                f"{first_name} was made with {_name(first)} and {name} with {_name(record)}; preprocess one of them "
                "again, or set FORCE=1 to mix them"
            )
    spec = spec_of(run)
    if spec.type == "NullTokenizer":
        _check_end(run, *known[0])
        return
    own = identity(spec)
    if own != first.tokenizer and not _differs_by_extra_ids(spec, first):
        raise DataError(
            f"{first_name} was made with {_name(first)}, the run uses {_describe(spec, own)}; {_cure(first, spec)}"
        )


def _differs_by_extra_ids(spec: TokenizerSpec, record: Record) -> bool:
    """Return whether data was made with the run's WordPiece vocabulary, without the tokens <extra_id_N> behind it.

    No text has these; Megatron preprocesses for T5 as for BERT.
    """
    if not (spec.type.startswith("BertWordPiece") and spec.extra_ids):
        return False
    return identity(replace(spec, extra_ids=0)) == record.tokenizer


def _check_end(run: RunConfig, name: str, record: Record) -> None:
    data = run.data
    asking = [name for name in ("eod_mask_loss", "reset_position_ids", "reset_attention_mask") if getattr(data, name)]
    end = run.model.vocab_size - 1
    if asking and record.eod is not None and record.eod != end:
        raise DataError(
            f"{name}: its documents end with {record.eod}, but TOKENIZER_TYPE=NullTokenizer and VOCAB_SIZE="
            f"{end + 1} say {end}, which {asking[0].upper()} looks for; set the tokenizer it was made with, "
            f"{_name(record)}"
        )


def _name(record: Record) -> str:
    return f"{record.tokenizer_type} {record.tokenizer_name} ({record.tokenizer})"


def _describe(spec: TokenizerSpec, own: str) -> str:
    extra = f" with VOCAB_EXTRA_IDS={spec.extra_ids}" if spec.extra_ids else ""
    return f"{spec.type} {spec.model or spec.vocab_file}{extra} ({own})"


def _cure(record: Record, spec: TokenizerSpec) -> str:
    uses_vocabulary = record.tokenizer_type.startswith(("GPT2BPE", "BertWordPiece"))
    setting = "VOCAB_FILE" if uses_vocabulary else "TOKENIZER_MODEL"
    wanted = f"set TOKENIZER_TYPE={record.tokenizer_type} and {setting}={record.tokenizer_name}"
    if (record.tokenizer_type, record.tokenizer_name) != (spec.type, spec.model or spec.vocab_file):
        return f"{wanted}, or FORCE=1"
    other = "MERGE_FILE" if spec.type == "GPT2BPETokenizer" else "VOCAB_EXTRA_IDS"
    return f"the file changed since, or {other} differed: restore it, preprocess again, or set FORCE=1"
