"""``megads data preprocess``: JSON lines to token files."""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any, get_args

import click

from megads.cli.options.request import ManyWords
from megads.config.settings.data import DataConfig, TokenizerType
from megads.text.plural import plural
from megads.text.quoting import quoted

if TYPE_CHECKING:
    from megads.data.preprocess.plan import Job

_TYPES = get_args(TokenizerType)
_CACHE = DataConfig.model_fields["cache_dir"].default


@click.command(cls=ManyWords)
@click.option("--input", "inputs", multiple=True, required=True, help="Files, patterns, or - for stdin; several.")
@click.option("--output-prefix", required=True, help="Files are called PREFIX_KEY_document.bin and .idx.")
@click.option("--json-keys", "--json-key", "keys", multiple=True, default=("text",), help="Keys to extract; several.")
@click.option("--tokenizer-type", "type", type=click.Choice(_TYPES), default=_TYPES[0], help="Kind of tokenizer.")
@click.option(
    "--tokenizer-model", "--tokenizer-name-or-path", "model", default="", help="A tokenizer's file or folder."
)
@click.option("--vocab-file", "--vocab", default="", help="Vocabulary of GPT2BPETokenizer or BertWordPiece*.")
@click.option("--merge-file", default="", help="Merges of GPT2BPETokenizer.")
@click.option("--vocab-size", type=click.IntRange(min=0), default=0, help="NullTokenizer: ids below N; N is eod.")
@click.option(
    "--vocab-extra-ids", "extra_ids", type=click.IntRange(min=0), default=0, help="Number of tokens <extra_id_N>."
)
@click.option("--append-eod", is_flag=True, help="End each document with the end-of-document token.")
@click.option("--split-sentences", is_flag=True, help="Split documents into sentences; files are PREFIX_KEY_sentence.")
@click.option(
    "--sentence-splitter",
    "splitter",
    type=click.Choice(("punkt", "rules", "lines")),
    default="punkt",
    help="nltk's Punkt model; rules: at stops before capitals, no model; lines: each line is a sentence.",
)
@click.option("--lang", default="english", help="Language of the sentences: name of nltk's Punkt model.")
@click.option("--keep-newlines", is_flag=True, help="Line breaks between sentences stay with the one before.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes that encode.  [default: cores]")
@click.option("--chunk-size", type=click.IntRange(min=0), default=0, help="Documents encoded at once; 0: by size.")
@click.option("--dataset-impl", "impl", type=click.Choice(("mmap", "cached", "lazy")), default="mmap", help="Format.")
@click.option("--partitions", type=click.IntRange(min=1), default=1, help="Parts made at the same time, then joined.")
@click.option("--keep-sequential-samples", is_flag=True, help="The order is always kept; for old command lines.")
@click.option("--log-interval", type=click.IntRange(min=0), default=0, help="Documents between lines of progress.")
@click.option("--max-bad-lines", type=click.IntRange(min=0), default=0, help="Bad lines that may be skipped.")
@click.option("--encoder", default="auto", help="Library that encodes; auto: the fastest that proves itself exact.")
@click.option(
    "--data-cache-path", envvar="DATA_CACHE_PATH", default=_CACHE, help="Keeps which library is exact for a tokenizer."
)
@click.option("--verify", is_flag=True, help="Encode every document a second time, by the original, and compare.")
@click.option("--overwrite", "--force", is_flag=True, help="Replace existing files.")
@click.option("--make-vocab-size-divisible-by", type=int, hidden=True)
@click.option("--pad-vocab-size-to", type=int, hidden=True)
@click.option("--block-bytes", type=click.IntRange(min=1), default=2 * 2**20, hidden=True)
@click.option("--commit-seconds", "commit_s", type=float, default=1.0, hidden=True)
@click.option("--keep-seconds", "keep_s", type=float, default=10.0, hidden=True)
def preprocess(**options: Any) -> None:
    """Make token files from JSON lines: one object a line, plain or as gzip, xz, zstd or bzip2.

    \b
      megads data preprocess --input corpus.jsonl --output-prefix my-gpt2 \\
          --tokenizer-model tokenizer.json --append-eod

    The output is the same for any number of workers, partitions and ranks, in the order of the input.
    Rerun a killed call to resume it. On many hosts:
    mpiexec -n 64 megads data preprocess ... with files that all of them see.
    """
    from megads.cluster.mpi import finish_mpi
    from megads.cluster.ranks import find_ranks
    from megads.data.preprocess.part import Stopped
    from megads.data.preprocess.run import preprocess as run
    from megads.data.preprocess.team import EndedByLeader

    me = find_ranks(os.environ)
    try:
        made = run(_job(options), rank=me.rank, size=me.world_size, stream=sys.stderr)
    except EndedByLeader:
        sys.exit(2)
    except Stopped as stopped:
        if me.rank == 0:
            click.echo("megads: stopped by a signal; rerun the same command to resume", err=True)
        sys.exit(128 + stopped.number)
    for each in made:
        # A line of a DATA_FILE_LIST: weight, prefix, corpus.
        corpus = os.path.basename(str(options["output_prefix"]))
        click.echo(
            f"{each.tokens} {quoted(os.path.abspath(each.prefix))} {quoted(corpus)}  "
            f"# {plural(each.documents, 'document')}, {plural(each.sequences, 'sequence')}, {each.dtype}"
        )
    finish_mpi()


def _job(options: dict[str, Any]) -> Job:
    from megads.cluster.machine import count_cores
    from megads.data.preprocess.input.files import find_inputs
    from megads.data.preprocess.plan import How, Job
    from megads.data.tokenizers.base import TokenizerSpec

    def of(kind: Any, **own: Any) -> Any:
        """Return a ``kind`` of the options that have the names of its fields, but for its ``own`` ones."""
        names = {each.name for each in fields(kind)}
        return kind(**{name: value for name, value in options.items() if name in names} | own)

    cache = os.path.abspath(os.path.expanduser(options["data_cache_path"]))
    # Megatron's N does not count the id at the end of documents, VOCAB_SIZE does.
    size = options["vocab_size"] + 1 if options["vocab_size"] else 0
    job: Job = of(
        Job,
        inputs=tuple(find_inputs(options["inputs"])),
        output_prefix=os.path.expanduser(options["output_prefix"]),
        tokenizer=of(TokenizerSpec, vocab_size=size),
        how=of(How, workers=options["workers"] or count_cores(), proofs=os.path.join(cache, "encoders")),
    )
    return job
