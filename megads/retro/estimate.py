"""What preprocessing will make and need, before it starts."""

from __future__ import annotations

from collections.abc import Iterator

from megads.data.retro.project import Project
from megads.retro.embedders.hashed import DIM
from megads.retro.index import IN_MEMORY_BYTES
from megads.text.plural import plural
from megads.text.units import size

_CHUNK_BYTES = 16 + 20  # of a chunk, in the blocks of its file and in the table of all files
_DOCUMENT_BYTES = 16 + 24
_BERT_DIM = 1024  # of a BERT whose folder was not opened yet: BERT-large, as upstream


def banner(project: Project) -> Iterator[str]:
    """Yield lines: what is read, what is made of it, which index, and bytes on disk and in memory."""
    config, own = project.config, project.config.own
    documents = sum(len(file) for file in project.files)
    tokens = sum(file.num_tokens for file in project.files)
    # The last chunk of a document is half full, on average.
    chunks = tokens // config.chunk_length + documents // 2
    dim = DIM if own["embedder"] == "hashed" else _BERT_DIM
    samples = config.train_samples + config.eval_iters * config.global_batch_size * sum(
        name is not None for split, name in config.neighbor_dirs.items() if split != "train"
    )
    rows = samples * project.chunks_per_sample
    database = chunks * _CHUNK_BYTES + documents * _DOCUMENT_BYTES
    vectors = chunks * dim * 4
    held = min(vectors, IN_MEMORY_BYTES) if own["index_type"] == "exact" else vectors
    neighbors = rows * own["num_neighbors"] * 8
    yield (
        f"{plural(len(project.files), 'token file')}, {documents:,} documents, {tokens:,} tokens: about {chunks:,} "
        f"chunks of {config.chunk_length} tokens, {size(database)}"
    )
    yield (
        f"index {own['index_type']} {own['index_str']}, embedder {own['embedder']} ({dim} numbers): "
        f"{size(vectors)} of vectors; a search holds {size(held)} at most"
    )
    yield (
        f"{samples:,} samples of {config.seq_length} tokens: neighbours of {rows:,} chunks, "
        f"{own['num_neighbors']} of {own['num_neighbors_query']} kept, {size(neighbors)}"
    )
