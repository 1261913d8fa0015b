"""A Retro project folder, as Megatron-core's preprocessing makes it and its training reads it.

    config.json                                  what it was made with
    data/                                        the token files, or links to them
    db/indexed_dataset_infos.json                how much each token file gives
    db/individual/<prefix>/<start>-<stop>.hdf5   chunks of documents start..stop
    db/merged/{train,sampled,valid}.hdf5         chunks of all files
    index/<type>/<string>/                       the index
    query/<split>_<md5>/<start>-<stop>.hdf5      neighbours of chunks start..stop of the samples

Paths in ``config.json`` start at the folder, prefixes of token files at its ``data/``, folders of neighbours at its
``query/``. What Megatron does not know is under the key ``megads``.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.formats.token_file import TokenFile, open_dataset
from megads.data.retro.blocks import Block, Table, columns_of
from megads.data.retro.database import Database
from megads.data.tokenizers.base import Tokenizer, TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from megads.errors import DataError
from megads.storage.durable import sync, write_synced
from megads.storage.open_file import cannot_read
from megads.storage.reading import read_json

CONFIG = "config.json"
OWN = "megads"
"""Key of ``config.json`` for what Megatron does not know."""

SPLITS = ("train", "valid", "test")
_OPEN_BLOCKS = 16  # files of neighbours that stay open


@dataclass(frozen=True)
class ProjectConfig:
    """What ``config.json`` holds; Megatron's key is ``retro_gpt_<name>`` unless another one is given.

    Attributes:
        data_path: weight and prefix of each token file; prefixes start at ``data/``.
        tokenizer: of the token files; its paths start at the project's folder.
        block_size: rows in a file of neighbours, ``retro_block_size``.
        bert_tokenizer: type and vocabulary, ``retro_bert_tokenizer_type`` and ``retro_bert_vocab_file``.
        neighbor_dirs: folder of each split's neighbours below ``query/``; None: nothing is asked for.
        own: what Megatron does not know: ``eod``, ``num_neighbors`` and others.
    """

    data_path: tuple[tuple[float, str], ...]
    tokenizer: TokenizerSpec
    bert_tokenizer: TokenizerSpec
    seq_length: int
    train_samples: int
    global_batch_size: int
    eval_interval: int
    eval_iters: int
    split: str = "969,30,1"
    seed: int = 1234
    chunk_length: int = 64
    block_size: int = 100_000
    data_cache_path: str | None = None
    neighbor_dirs: Mapping[str, str | None] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the content of ``config.json``."""
        plain = ("seq_length", "train_samples", "global_batch_size", "eval_interval", "eval_iters", "split", "seed")
        gpt = {name: getattr(self, name) for name in (*plain, "chunk_length", "data_cache_path")}
        gpt |= {
            "data_path": [word for weight, prefix in self.data_path for word in (str(weight), prefix)],
            "tokenizer_type": self.tokenizer.type,
            "tokenizer_model": self.tokenizer.model or None,
            "vocab_file": self.tokenizer.vocab_file or None,
            "merge_file": self.tokenizer.merge_file or None,
        }
        return {
            **{f"retro_gpt_{name}": value for name, value in gpt.items()},
            "retro_block_size": self.block_size,
            "retro_bert_tokenizer_type": self.bert_tokenizer.type,
            "retro_bert_vocab_file": self.bert_tokenizer.vocab_file or None,
            "retro_neighbor_dirs": dict(self.neighbor_dirs),
            OWN: dict(self.own),
        }

    @property
    def doc_block_size(self) -> int:
        """Documents in a file of chunks."""
        return int(self.own.get("doc_block_size", 100_000))

    @property
    def ntrain(self) -> int | None:
        """Chunks of all files to train the index on; None: all to train on."""
        found = self.own.get("ntrain")
        return None if found is None else int(found)

    @staticmethod
    def of_json(content: Mapping[str, Any]) -> ProjectConfig:
        """Return what the content of ``config.json`` says.

        Raises:
            KeyError, TypeError, ValueError: something is missing or of the wrong kind.
        """
        gpt = {key.removeprefix("retro_gpt_"): value for key, value in content.items() if key.startswith("retro_gpt_")}
        words = [str(word) for word in gpt["data_path"]]
        own = dict(content.get(OWN) or {})
        tokenizer = TokenizerSpec(
            gpt["tokenizer_type"],
            gpt.get("tokenizer_model") or "",
            gpt.get("vocab_file") or "",
            gpt.get("merge_file") or "",
            int(own.get("vocab_size", 0)) if gpt["tokenizer_type"] == "NullTokenizer" else 0,
        )
        bert = TokenizerSpec(content["retro_bert_tokenizer_type"], vocab_file=content["retro_bert_vocab_file"] or "")
        numbers = ("seq_length", "train_samples", "global_batch_size", "eval_interval", "eval_iters")
        config = ProjectConfig(
            tuple((float(weight), prefix) for weight, prefix in zip(words[::2], words[1::2], strict=True)),
            tokenizer,
            bert,
            **{name: int(gpt[name]) for name in numbers},
            split=str(gpt["split"]),
            seed=int(gpt["seed"]),
            chunk_length=int(gpt["chunk_length"]),
            block_size=int(content["retro_block_size"]),
            data_cache_path=gpt.get("data_cache_path"),
            neighbor_dirs=dict(content["retro_neighbor_dirs"]),
            own=own,
        )
        for name in (*numbers[:3], "chunk_length", "block_size"):
            if getattr(config, name) < 1:
                raise ValueError(f"{name} is {getattr(config, name)}, expected 1 or more")
        if config.seq_length % config.chunk_length:
            raise ValueError(f"seq_length {config.seq_length} is not a multiple of chunk_length {config.chunk_length}")
        return config


class Project:
    """A project's folder, for reading; files are opened when they are needed."""

    def __init__(self, folder: Path, config: ProjectConfig):
        self.folder, self.config = folder, config
        self._databases: dict[str, Database] = {}
        self._tables: OrderedDict[Path, Table] = OrderedDict()
        self._blocks: dict[str, list[Block]] = {}
        self._lock = threading.Lock()

    @staticmethod
    def open(path: str | Path) -> Project:
        """Open a project.

        Raises:
            DataError: the folder is none, or ``config.json`` is damaged.
        """
        folder = Path(path).expanduser().absolute()
        return Project(folder, read_config(folder))

    @property
    def chunks_per_sample(self) -> int:
        """L, the chunks of a sample."""
        return self.config.seq_length // self.config.chunk_length

    def data_prefix(self, prefix: str) -> str:
        """Return where a token file of the project is."""
        return str(self.folder / "data" / prefix)

    @cached_property
    def files(self) -> tuple[TokenFile, ...]:
        """The token files, in their order."""
        return tuple(open_dataset(self.data_prefix(prefix)) for _, prefix in self.config.data_path)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the token files; errors as :func:`make_tokenizer`."""
        return make_tokenizer(resolved(self.config.tokenizer, self.folder))

    @cached_property
    def eod(self) -> int:
        """Id of the token that ends documents; it fills chunks up."""
        known = self.config.own.get("eod")
        return self.tokenizer.eod if known is None else int(known)

    def database(self, split: str = "train") -> Database:
        """Return a table of chunks: ``train`` (what is retrieved), ``valid`` or ``sampled``.

        Raises:
            DataError: it is missing or damaged.
        """
        with self._lock:
            if split not in self._databases:
                path = merged_path(self.folder, split)
                self._databases[split] = Database(path, self.files, self.config.chunk_length, self.eod)
            return self._databases[split]

    def tokens(self, ids: npt.ArrayLike, length: int) -> npt.NDArray[np.int64]:
        """Return the tokens of retrieved chunks and of those behind them, int64 [.., length].

        See :meth:`Database.tokens`.
        """
        return self.database().tokens(ids, length)

    def num_neighbor_rows(self, split: str) -> int:
        """Return how many chunks of a split's samples have neighbours, up to the first missing file; 0: none.

        Raises:
            DataError: the folder is missing.
        """
        return sum(map(len, self._list_blocks(split)))

    def neighbors(self, split: str, start: int, stop: int | None = None) -> npt.NDArray[np.int64]:
        """Return the neighbours of chunk ``start`` of a split's samples, int64 [k], or of ``start..stop``, [chunks, k].

        Chunk ``c`` of sample ``i`` is ``i * chunks_per_sample + c``. -1: there are not that many neighbours.

        Raises:
            DataError: a chunk was not queried, or a file is missing or damaged.
        """
        last = start + 1 if stop is None else stop
        size, blocks = self.config.block_size, self._blocks_of(split)
        rows = blocks[-1].stop if blocks else 0
        if not 0 <= start < last <= rows:
            raise DataError(
                f"{self._neighbor_folder(split)}: chunks {start}..{last} were not queried, neighbours of {rows} are "
                "there; rerun `megads retro query` with this run's settings"
            )
        found = [
            self._table(block).read(max(start, block.start) - block.start, min(last, block.stop) - block.start)
            for block in blocks[start // size : (last - 1) // size + 1]
        ]
        joined = np.concatenate(found) if len(found) > 1 else found[0]
        return joined.astype(np.int64, copy=False)[0] if stop is None else joined.astype(np.int64, copy=False)

    def open_neighbors(self, split: str) -> None:
        """Open every file of a split's neighbours once; their bytes are not read.

        Raises:
            DataError: a file is damaged, cut short, or has other rows than its name says.
        """
        for block in self._blocks_of(split):
            self._table(block)

    def _blocks_of(self, split: str) -> list[Block]:
        """Return the files of a split's neighbours; the folder is listed once."""
        if split not in self._blocks:
            self._blocks[split] = self._list_blocks(split)
        return self._blocks[split]

    def _list_blocks(self, split: str) -> list[Block]:
        """Return the files of a split's neighbours up to the first missing one, by their names."""
        paths = self._neighbor_folder(split).glob("[0-9]*-[0-9]*.hdf5")
        found = []
        for path in paths:
            start, stop = path.stem.split("-")
            found.append(Block(int(start), int(stop), path))
        blocks: list[Block] = []
        for block in sorted(found, key=lambda block: block.start):
            if block.start != len(blocks) * self.config.block_size:
                break
            blocks.append(block)
        return blocks

    def _neighbor_folder(self, split: str) -> Path:
        name = self.config.neighbor_dirs.get(split)
        if not name:
            raise DataError(f"{self.folder / CONFIG}: no neighbours of split {split!r}; run `megads retro query`")
        return self.folder / "query" / name

    def _table(self, block: Block) -> Table:
        with self._lock:
            table = self._tables.pop(block.path, None)
            if table is None:
                table = Table(block.path, "neighbors", self.num_neighbors)
                if len(table) != len(block):
                    raise DataError(f"{block.path}: holds {len(table)} chunks, its name says {len(block)}")
            self._tables[block.path] = table
            while len(self._tables) > _OPEN_BLOCKS:
                self._tables.popitem(last=False)
            return table

    @cached_property
    def num_neighbors(self) -> int:
        """How many neighbours of a chunk are kept; of a project made by Megatron, as its first file has it."""
        known = self.config.own.get("num_neighbors")
        if known is not None:
            return int(known)
        for split, name in self.config.neighbor_dirs.items():
            for block in self._blocks_of(split)[:1] if name else ():
                return columns_of(block.path, "neighbors")
        raise DataError(f"{self.folder}: no neighbours yet; run `megads retro query`")


def merged_path(folder: Path, split: str) -> Path:
    """Return the file of a table of chunks of all token files."""
    return folder / "db" / "merged" / f"{split}.hdf5"


def resolved(spec: TokenizerSpec, folder: Path) -> TokenizerSpec:
    """Return a tokenizer whose paths, which start at ``folder``, are whole."""
    model, vocab, merges = (
        str(folder / path) if path else "" for path in (spec.model, spec.vocab_file, spec.merge_file)
    )
    return replace(spec, model=model, vocab_file=vocab, merge_file=merges)


def read_config(folder: Path) -> ProjectConfig:
    """Return what a project's ``config.json`` says.

    Raises:
        DataError: it is missing or damaged.
    """
    path = folder / CONFIG
    try:
        return ProjectConfig.of_json(read_json(path))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; a Retro project is made by `megads retro build`") from None
    except OSError as error:
        raise cannot_read(path, error) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        name = f"key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path}: not the config.json of a Retro project: {name}") from None


def write_config(folder: Path, config: ProjectConfig) -> None:
    """Write ``config.json``, whole or not at all."""
    path, temporary = folder / CONFIG, folder / f".{CONFIG}.tmp"
    write_synced(temporary, json.dumps(config.as_json(), indent=4, sort_keys=True).encode())
    temporary.replace(path)
    sync(folder)
