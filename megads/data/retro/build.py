"""``db/``: the chunks of each token file in blocks, their counts, and the tables of all files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from megads.data.retro.blocks import Block, Shapes, blocks_of, missing_blocks, problem_of, read_arrays, write_file
from megads.data.retro.chunks import Cutter, make_cutter
from megads.data.retro.crew import Crew, Tick
from megads.data.retro.project import Project, merged_path, resolved
from megads.errors import DataError
from megads.storage.durable import sync, write_synced
from megads.storage.reading import read_json
from megads.text.plural import plural

if TYPE_CHECKING:
    import h5py

INFOS = "indexed_dataset_infos.json"
MERGED = ("sampled", "train", "valid")


@dataclass(frozen=True)
class Info:
    """What one token file gives, as ``indexed_dataset_infos.json`` has it."""

    ratio: float
    prefix: str
    n_docs: int
    n_docs_train: int
    n_chunks: int
    n_chunks_train: int
    n_chunks_invalid: int
    n_chunks_sampled: int

    def count(self, table: str) -> int:
        """Return the rows that the file gives to a table of :data:`MERGED`."""
        if table == "valid":
            return self.n_chunks - self.n_chunks_train
        return self.n_chunks_sampled if table == "sampled" else self.n_chunks_train


def build_database(project: Project, crew: Crew) -> list[Info]:
    """Build what is missing or damaged of the database. Collective; returns the counts, on rank 0.

    Raises:
        MegadsError: a token file does not fit, or the folder cannot be written.
    """
    cutter: list[Cutter] = []  # made when the first block is, so that a complete database needs no tokenizer

    def make(block: Block, tick: Tick) -> None:
        cutter.extend([cutter_of(project)] if not cutter else [])
        block_file = project.files[file_of(project, block)]
        write_block(block, cutter[0].cut(block_file, block.start, block.stop, tick))

    def find() -> list[Block]:
        return find_missing(project, crew.report)

    crew.stage("chunks", find, make, "documents")
    infos: list[Info] = []
    crew.alone(lambda: infos.extend(finish_database(project, crew.report)))
    return infos


def cutter_of(project: Project) -> Cutter:
    """Return what cuts the project's documents; errors as :func:`make_cutter`."""
    config = project.config
    return make_cutter(
        config.chunk_length, project.eod, project.tokenizer, resolved(config.bert_tokenizer, project.folder)
    )


def find_missing(project: Project, report: Callable[[str], None]) -> list[Block]:
    """Return the blocks that have to be made; damaged ones are removed and reported.

    Raises:
        DataError: a token file is missing or split into sentences.
    """
    found: list[Block] = []
    for number, (file, (_, prefix)) in enumerate(zip(project.files, project.config.data_path, strict=True)):
        if file.num_documents < len(file):
            raise DataError(
                f"{file.prefix}: {len(file)} sequences in {plural(file.num_documents, 'document')}: it was split into "
                "sentences; preprocess the text without --split-sentences"
            )
        folder = individual_folder(project.folder, prefix)
        remove_leftovers(folder)
        wanted, notes = missing_blocks(individual_blocks(project, number), shapes_of)
        found += wanted
        for note in notes:
            report(note)
    return found


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process did not finish to write."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def individual_folder(folder: Path, prefix: str) -> Path:
    """Return the folder of the blocks of a token file."""
    return folder / "db" / "individual" / prefix


def individual_blocks(project: Project, number: int) -> list[Block]:
    """Return the blocks of documents of a token file."""
    folder = individual_folder(project.folder, project.config.data_path[number][1])
    return blocks_of(folder, len(project.files[number]), project.config.doc_block_size)


def file_of(project: Project, block: Block) -> int:
    """Return the number of the token file that a block is of."""
    folders = [individual_folder(project.folder, prefix) for _, prefix in project.config.data_path]
    return folders.index(block.path.parent)


def shapes_of(block: Block) -> Shapes:
    """Return the shapes of the datasets of a block of documents."""
    return {"chunks_valid": (None, 4), "chunks_invalid": (None, 4), "doc_offsets": (len(block), 2)}


def write_block(block: Block, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Write a block of documents, in upstream's order of datasets."""

    def fill(file: h5py.File) -> None:
        for name in ("chunks_valid", "chunks_invalid", "doc_offsets"):
            file.create_dataset(name, data=arrays[name])

    write_file(block.path, fill)


def finish_database(project: Project, report: Callable[[str], None]) -> list[Info]:
    """Count, and build the tables of all files, from complete blocks; return the counts.

    Raises:
        DataError: more chunks are to be sampled than a file has, or the folder cannot be written.
    """
    infos = count_chunks(project)
    path = project.folder / "db" / INFOS
    text = json.dumps([asdict(info) for info in infos], indent=4)
    is_same = path.is_file() and path.read_bytes() == text.encode()
    for table in MERGED:
        file = merged_path(project.folder, table)
        remove_leftovers(file.parent)
        problem = problem_of(file, merged_shapes(infos, table)) if is_same else "missing"
        if problem not in ("", "missing"):
            report(f"{file}: {problem}; it is built again")
        if problem:
            write_file(file, Merge(project, infos, table).fill)
    if not is_same:  # written last: with it the tables are complete
        temporary = path.with_name(f".{INFOS}.tmp")
        write_synced(temporary, text.encode())
        temporary.replace(path)
        sync(path.parent)
    return infos


def merged_shapes(infos: Sequence[Info], table: str) -> Shapes:
    """Return the shapes of the datasets of a table of all files."""
    rows = sum(info.count(table) for info in infos)
    shapes: dict[str, tuple[int | None, ...]] = {"chunks": (rows, 5), "n_written": (1,)}
    if table == "train":
        shapes["doc_offsets"] = (sum(info.n_docs_train for info in infos), 3)
    return shapes


def count_chunks(project: Project) -> list[Info]:
    """Return what each token file gives.

    Raises:
        DataError: more chunks are to be sampled than a file has, or there is none to retrieve.
    """
    config = project.config
    total = sum(weight for weight, _ in config.data_path)
    shares = [float(each) for each in config.split.split(",")]
    infos = []
    for number, (weight, prefix) in enumerate(config.data_path):
        documents = len(project.files[number])
        train = int(shares[0] / sum(shares) * documents)
        valid = invalid = used = 0
        for block in individual_blocks(project, number):
            arrays = read_arrays(block.path, shapes_of(block))
            rows = arrays["chunks_valid"].reshape(-1, 4)
            valid, invalid = valid + len(rows), invalid + len(arrays["chunks_invalid"])
            used += int((rows[:, 0] < train).sum())
        wanted = used if config.ntrain is None else int(config.ntrain * weight / total)
        if wanted > used:
            raise DataError(
                f"--retro-index-ntrain {config.ntrain}: {wanted} of them fall to {prefix}, which has {used} chunks to "
                "train on; lower it, or the file's weight"
            )
        infos.append(Info(weight, prefix, documents, train, valid, used, invalid, wanted))
    if not sum(info.n_chunks_train for info in infos):
        raise DataError(
            f"{project.folder}: no chunk to retrieve in the first {shares[0]:g} of {sum(shares):g} of the documents "
            "(--retro-gpt-split); raise the first share, or use more data"
        )
    return infos


def read_infos(folder: Path) -> list[Info]:
    """Return the counts of a database.

    Raises:
        DataError: there is no database yet, or the file is damaged.
    """
    path = folder / "db" / INFOS
    try:
        return [Info(**each) for each in read_json(path)]
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; run `megads retro build` first") from None
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged ({error}); remove it and rerun `megads retro build`") from None


class Merge:
    """Fills a table of all files, one of :data:`MERGED`."""

    def __init__(self, project: Project, infos: Sequence[Info], table: str):
        self._project, self._infos, self._table = project, infos, table

    def fill(self, file: h5py.File) -> None:
        """Make the datasets of an open file."""
        shapes = merged_shapes(self._infos, self._table)
        chunks = file.create_dataset("chunks", shapes["chunks"], dtype="uint32")
        if self._table == "train":
            file.create_dataset("doc_offsets", shapes["doc_offsets"], dtype="uint64")
        written = file.create_dataset("n_written", (1,), dtype="uint64")
        rows = documents = 0
        for number, info in enumerate(self._infos):
            before = rows
            for part in self._rows(number, info):
                chunks[rows : rows + len(part)] = part
                rows += len(part)
            for ends in self._offsets(number, info, before) if self._table == "train" else ():
                file["doc_offsets"][documents : documents + len(ends)] = ends
                documents += len(ends)
        written[0] = rows

    def _rows(self, number: int, info: Info) -> Iterator[npt.NDArray[np.uint32]]:
        """Yield the rows that a file gives, uint32 [chunks, 5]."""
        first = info.n_chunks_train if self._table == "valid" else 0
        last = first + info.count(self._table)
        start = 0
        for block in individual_blocks(self._project, number):
            found = read_arrays(block.path, shapes_of(block))["chunks_valid"].reshape(-1, 4)
            part = found[max(0, first - start) : max(0, last - start)]
            start += len(found)
            yield np.concatenate([np.full((len(part), 1), number, np.uint32), part], axis=1)

    def _offsets(self, number: int, info: Info, before: int) -> Iterator[npt.NDArray[np.uint64]]:
        """Yield rows of data set, document, and the chunks of the table up to its end, for documents to train on."""
        for block in individual_blocks(self._project, number):
            found = read_arrays(block.path, shapes_of(block))["doc_offsets"]
            part = found[: max(0, info.n_docs_train - block.start)]
            out = np.empty((len(part), 3), np.uint64)
            out[:, 0], out[:, 1], out[:, 2] = number, part[:, 0], part[:, 1] + np.uint64(before)
            before += int(found[-1, 1])
            yield out
