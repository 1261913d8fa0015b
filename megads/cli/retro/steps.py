"""``megads retro build``, ``train-index``, ``add`` and ``query``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from megads.cli.options.request import ManyWords
from megads.config.settings.data import TokenizerType

if TYPE_CHECKING:
    from megads.retro.run import How

_COUNT, _ANY, _SHARE = click.IntRange(min=1), click.IntRange(min=0), click.FloatRange(0, 1, min_open=True)
_TYPES = get_args(TokenizerType)
_BERTS = ("BertWordPieceLowerCase", "BertWordPieceCase", "Words")

PROJECT = click.option(
    *("--retro-project-dir", "--retro-workdir", "folder"), required=True, metavar="DIR", help="The project's folder."
)
WORKERS = click.option("--workers", type=_COUNT, help="Local processes.  [default: cores; one where a BERT embeds]")

_RENAMED = {
    "--no-retro-index-delete-training-embeddings": "--retro-index-no-delete-training-embeddings",
    "--no-retro-index-delete-added-codes": "--retro-index-no-delete-added-codes",
}
_UNUSED = {"--retro-return-doc-ids", "--output-bert-embeddings", "--retro-print-tokens"}


class StepCommand(ManyWords):
    """Takes Megatron's whole command line: what describes its BERT and its ranks is dropped, with a note."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``args`` without the options of Megatron that no step reads."""
        own = {name for option in self.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
        words = [_RENAMED.get(word, word) for word in args]
        foreign = {word.partition("=")[0] for word in words if word.startswith("--")} - own
        if foreign - _UNUSED:
            from megads.config.sources.flags import flags

            foreign &= flags().keys() | _UNUSED
        kept, is_dropped, dropped = [], False, []
        for word in words:
            if word.startswith("--"):
                is_dropped = word.partition("=")[0] in foreign
                dropped += [word.partition("=")[0]] if is_dropped else []
            if not is_dropped:
                kept.append(word)
        if dropped:
            click.echo(f"megads: not used here: {', '.join(dict.fromkeys(dropped))}", err=True)
        return super().parse_args(ctx, kept)


Options = tuple[Callable[..., Any], ...]
DATA: Options = (
    click.option(
        "--retro-gpt-data-path",
        "data_path",
        multiple=True,
        metavar="[WEIGHT] PREFIX...",
        help="Token files, with weights; below DIR/data, or elsewhere.",
    ),
    click.option("--data-file-list", metavar="FILE", help="The same from a list, as DATA_FILE_LIST."),
    click.option("--retro-gpt-tokenizer-type", type=click.Choice(_TYPES), help="Of the token files."),
    click.option("--retro-gpt-tokenizer-model", metavar="PATH", help="Its file or folder."),
    click.option("--retro-gpt-vocab-file", metavar="FILE", help="Vocabulary of GPT2BPETokenizer."),
    click.option("--retro-gpt-merge-file", metavar="FILE", help="Merges of GPT2BPETokenizer."),
    click.option("--retro-gpt-vocab-size", type=_COUNT, help="Of NullTokenizer, as VOCAB_SIZE."),
    click.option("--retro-gpt-chunk-length", type=_COUNT, help="Tokens of a chunk.  [default: 64]"),
    click.option("--retro-gpt-split", help="Train,valid,test.  [default: 969,30,1]"),
    click.option("--retro-doc-block-size", "doc_block_size", type=_COUNT, help="Documents of a file of chunks."),
    click.option("--retro-block-size", "block_size", type=_COUNT, help="Chunks of a file of vectors or neighbours."),
)
BERT: Options = (
    click.option("--retro-bert-tokenizer-type", "bert_tokenizer_type", type=click.Choice(_BERTS)),
    click.option("--retro-bert-vocab-file", "bert_vocab_file", metavar="FILE", help="vocab.txt of the BERT."),
    click.option("--retro-bert-batch-size", "bert_batch_size", type=_COUNT, help="Texts at a time.  [default: 128]"),
    click.option(
        "--retro-bert-max-chunk-length",
        "bert_max_chunk_length",
        type=click.IntRange(min=3),
        help="Most tokens of a text.  [default: 256]",
    ),
    click.option(
        "--bert-embedder-type",
        "embedder",
        type=click.Choice(("hashed", "huggingface", "megads", "megatron")),
        help="hashed: words, without a model; megads: a run or checkpoint, of Megatron too.",
    ),
    click.option(
        "--retro-bert-model", "--load", "embedder_model", metavar="PATH", help="Folder, run or checkpoint of the BERT."
    ),
)
INDEX: Options = (
    click.option(
        "--retro-index-type",
        "index_type",
        type=click.Choice(("exact", "faiss-base", "faiss-par-add")),
        help="exact: numpy; else faiss.",
    ),
    click.option("--retro-index-str", "index_str", metavar="TEXT", help="Of faiss: OPQ32_64,IVF65536_HNSW8,PQ32."),
    click.option(
        "--retro-index-ntrain", "--retro-nchunks-sampled", "ntrain", type=_ANY, help="Chunks to train the index on."
    ),
    click.option("--retro-index-train-load-fraction", "train_load_fraction", type=_SHARE, help="Share of these."),
    click.option("--retro-index-add-load-fraction", "add_load_fraction", type=_SHARE, help="Share that is added."),
    click.option(
        "--retro-index-no-delete-training-embeddings/--retro-index-delete-training-embeddings",
        "keep_vectors",
        help="Keep the vectors that the index was trained on.",
    ),
    click.option(
        "--retro-index-no-delete-added-codes/--retro-index-delete-added-codes",
        "keep_codes",
        default=True,
        help="Keep what was added to an index of faiss.",
    ),
)
QUERY: Options = (
    click.option("--retro-gpt-seq-length", type=_COUNT, help="Of the run."),
    click.option(
        "--retro-gpt-train-samples", "--train-samples", "retro_gpt_train_samples", type=_COUNT, help="Of the run."
    ),
    click.option("--retro-gpt-global-batch-size", type=_COUNT),
    click.option(
        "--retro-gpt-eval-interval",
        type=_ANY,
        help="Of the run; 0: no validation.  [default: 100]",
    ),
    click.option("--retro-gpt-eval-iters", type=_ANY, help="[default: 20]"),
    click.option("--retro-gpt-seed", type=_ANY, help="Of the run.  [default: 1234]"),
    click.option("--retro-gpt-data-cache-path", metavar="DIR"),
    click.option("--retro-query-ef-search", "ef_search", type=_COUNT, help="Of graphs of faiss.  [default: 256]"),
    click.option("--retro-query-nprobe", "nprobe", type=_COUNT, help="Lists that faiss looks at.  [default: 65536]"),
    click.option(
        *("--retro-query-num-neighbors-query", "num_neighbors_query"), type=_COUNT, help="Searched.  [default: 200]"
    ),
    click.option(*("--retro-query-num-neighbors-save", "num_neighbors"), type=_COUNT, help="Kept.  [default: 20]"),
)


def _with(*groups: Options) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return what adds options to a command, in their order."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed([option for group in groups for option in group]):
            command = option(command)
        return command

    return add


@click.command(cls=StepCommand)
@PROJECT
@click.option("--retro-tasks", "tasks", default="build", help="Steps, as Megatron calls them, with commas.")
@click.option("--retro-task-validate", "validate", type=float, help="Recompute a share instead, as `validate`.")
@_with(DATA, BERT, INDEX, QUERY)
@WORKERS
def build(folder: str, tasks: str, validate: float | None, **options: Any) -> None:
    """Make a Retro project, or what is missing or damaged of one.

    \b
      megads retro build --retro-project-dir retro \\
          --retro-gpt-data-path 1.0 my-gpt2_text_document --retro-gpt-tokenizer-model tokenizer.json \\
          --retro-gpt-seq-length 2048 --retro-gpt-train-samples 100000 --retro-gpt-global-batch-size 256

    Options are read once, into DIR/config.json. The result is the same for any number of workers and ranks. Rerun a
    killed call to resume it. On many hosts: mpiexec -n 64 megads retro build ... with a folder that all of them see.
    """
    from megads.retro.run import steps_of

    steps = steps_of(tasks)
    if validate is not None:
        from megads.cli.retro.validate import run

        return run(folder, validate, None, how_of(options), mend=False)
    _run(folder, steps, options)


@click.command("train-index", cls=StepCommand)
@PROJECT
@_with(BERT, INDEX)
@WORKERS
def train_index(folder: str, **options: Any) -> None:
    """Train the index of faiss on sampled chunks; the exact index needs none."""
    _run(folder, ("index-train",), options)


@click.command(cls=StepCommand)
@PROJECT
@_with(BERT, INDEX)
@WORKERS
def add(folder: str, **options: Any) -> None:
    """Add the chunks that can be retrieved to the index."""
    _run(folder, ("index-add",), options)


@click.command(cls=StepCommand)
@PROJECT
@_with(BERT, INDEX, QUERY)
@WORKERS
def query(folder: str, **options: Any) -> None:
    """Find the neighbours of a run's samples: of training, validation and test."""
    _run(folder, ("query-neighbors",), options)


def how_of(options: dict[str, Any]) -> How:
    """Return who does the work; takes its options out of ``options``."""
    from megads.cluster.machine import count_cores
    from megads.cluster.ranks import find_ranks
    from megads.retro.run import How

    me = find_ranks(os.environ)
    workers = options.pop("workers", None) or 0
    keep = {name: bool(options.pop(name)) for name in ("keep_vectors", "keep_codes") if name in options}
    return How(me.rank, me.world_size, max(0, me.local_rank), workers, count_cores(), **keep)


def _run(folder: str, steps: tuple[str, ...], options: dict[str, Any]) -> None:
    from megads.cluster.mpi import finish_mpi
    from megads.data.preprocess.team import EndedByLeader
    from megads.retro.run import options_of, run_steps
    from megads.text.quoting import quoted

    how = how_of(options)
    if words := options.pop("data_path", ()):
        options["data_path"] = " ".join(map(quoted, words))
    if options.get("embedder") == "megatron":
        options["embedder"] = "megads"  # its checkpoints are read like ours
    try:
        line = run_steps(Path(folder), options_of(options), steps, how, sys.stderr)
    except EndedByLeader:
        sys.exit(2)
    if line:
        click.echo(line)
    finish_mpi()
