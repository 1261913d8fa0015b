"""``config.json`` of a project: made of what the user asks for, or compared with what it was made with."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from megads.config.settings.data import parse_split
from megads.data.formats.token_file import open_dataset
from megads.data.retro.chunks import WORDS
from megads.data.retro.project import CONFIG, Project, ProjectConfig, read_config, resolved, write_config
from megads.data.retro.samples import run_of
from megads.data.samples.gpt import Stamp
from megads.data.sources.file_list import Shard, parse_data_path, read_file_list, repeated
from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from megads.data.tokenizers.record_check import check_record
from megads.errors import ConfigError, DataError
from megads.storage.reading import read_json

Asked = Mapping[str, Any]
"""Options by the name of a field of :class:`ProjectConfig`, of a key of ``megads`` in ``config.json``, or of a part of
a tokenizer; None or missing: as before, else the default."""

PLAIN = ("seq_length", "train_samples", "global_batch_size", "eval_interval", "eval_iters", "split", "seed")
_NUMBERS = (*PLAIN[:3], "chunk_length", "block_size")
REQUIRED = ("seq_length", "train_samples", "global_batch_size")
DEFAULTS: dict[str, Any] = {
    "eval_interval": 100,
    "eval_iters": 20,
    "split": "969,30,1",
    "seed": 1234,
    "chunk_length": 64,
    "block_size": 100_000,
}
OWN_DEFAULTS: dict[str, Any] = {
    "doc_block_size": 100_000,
    "ntrain": None,
    "embedder": "hashed",
    "embedder_model": "",
    "bert_batch_size": 128,
    "bert_max_chunk_length": 256,
    "index_type": "exact",
    "index_str": "Flat",
    "train_load_fraction": 1.0,
    "add_load_fraction": 1.0,
    "nprobe": 65536,
    "ef_search": 256,
    "num_neighbors_query": 200,
    "num_neighbors": 20,
}
OPTIONS = {
    "data_path": "--retro-gpt-data-path",
    "tokenizer": "--retro-gpt-tokenizer-type and its files",
    "bert_tokenizer": "--retro-bert-tokenizer-type and -vocab-file",
    "chunk_length": "--retro-gpt-chunk-length",
    "block_size": "--retro-block-size",
    "split": "--retro-gpt-split",
    "doc_block_size": "--retro-doc-block-size",
    "ntrain": "--retro-index-ntrain",
    "embedder": "--bert-embedder-type",
    "embedder_model": "--retro-bert-model",
    "bert_max_chunk_length": "--retro-bert-max-chunk-length",
}
"""What cannot change within a project, and its option: it decides the database or the embeddings."""

_QUERY = (
    *("index_type", "index_str", "train_load_fraction", "add_load_fraction", "nprobe", "ef_search"),
    *("num_neighbors_query", "num_neighbors"),
)


def prepare(folder: Path, asked: Asked, check: Callable[[Project], None] = lambda project: None) -> Project:
    """Make a project's folder, links to its token files and ``config.json``; or bring those up to what is asked for.

    Args:
        check: raises for a project that cannot be built; ``config.json`` then stays as it was.

    Raises:
        ConfigError: something is missing, or contradicts what the project was made with.
        DataError: a file is missing, broken, or changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = read_config(folder) if (folder / CONFIG).exists() else None
    config = wanted(folder, asked, before)
    project = Project(folder, config)
    sizes = [[stamp.index_bytes, stamp.token_bytes] for stamp in map(Stamp.of, _prefixes(project))]
    if before is not None:
        _check_same(folder, before, config)
        if before.own.get("file_bytes", sizes) != sizes:
            raise DataError(
                f"{folder}: its token files changed since the database was built; use another --retro-project-dir"
            )
    config = replace(config, own={**config.own, **_known_of_tokenizer(project), "file_bytes": sizes})
    project = Project(folder, config)
    check_record(run_of(project), _prefixes(project))
    config = replace(config, neighbor_dirs=neighbor_dirs(project))
    if config != before:
        check(Project(folder, config))
        write_config(folder, config)
    return Project(folder, config)


def _prefixes(project: Project) -> list[str]:
    return [project.data_prefix(prefix) for _, prefix in project.config.data_path]


def _known_of_tokenizer(project: Project) -> dict[str, int]:
    """Return the size of the vocabulary and the end of documents; the tokenizer is loaded once for a project."""
    own = project.config.own
    if "eod" not in own:
        tokenizer = make_tokenizer(resolved(project.config.tokenizer, project.folder))
        return {"eod": tokenizer.eod, "vocab_size": tokenizer.vocab_size}
    return {}


def wanted(folder: Path, asked: Asked, before: ProjectConfig | None) -> ProjectConfig:
    """Return the configuration that is asked for; what is not is as ``before``, or the default.

    Raises:
        ConfigError, DataError: as :func:`prepare`.
    """
    given = {name: value for name, value in asked.items() if value is not None}
    values = {name: getattr(before, name) for name in (*PLAIN, "chunk_length", "block_size")} if before else DEFAULTS
    values = {**values, **{name: given[name] for name in (*DEFAULTS, *REQUIRED) if name in given}}
    for name in REQUIRED:
        if name not in values:
            raise ConfigError(f"a new project needs --retro-gpt-{name.replace('_', '-')}")
    own = {**OWN_DEFAULTS, **(before.own if before else {})}
    own |= {name: given[name] for name in OWN_DEFAULTS if name in given}
    if "embedder_model" in given and "embedder" not in given:
        model = folder / os.path.expanduser(given["embedder_model"])
        is_hf = (model / "config.json").is_file() or Path(given["embedder_model"], "config.json").is_file()
        own["embedder"] = "huggingface" if is_hf else "megads"
    own |= _index_of(given, own)
    if "vocab_size" in given and given.get("tokenizer_type") == "NullTokenizer":
        own["vocab_size"] = given["vocab_size"]
    _check_values(values, own)
    if own["embedder_model"]:
        own["embedder_model"] = _stored(own["embedder_model"], folder)
    cache = given.get("data_cache_path", before.data_cache_path if before else None)
    return ProjectConfig(
        data_path=_data_path(folder, given, before),
        tokenizer=_tokenizer(folder, given, before),
        bert_tokenizer=_bert_tokenizer(folder, given, before, own),
        data_cache_path=cache and _stored(cache, folder),
        neighbor_dirs=before.neighbor_dirs if before else {},
        own=own,
        **values,
    )


def _index_of(given: Asked, own: Mapping[str, Any]) -> dict[str, str]:
    """Return type and string of the index: a string that only faiss knows asks for faiss."""
    kind = given.get("index_type", own["index_type"])
    if "index_str" in given and "index_type" not in given and given["index_str"] != "Flat":
        kind = "faiss-par-add"
    string = given.get("index_str", "Flat" if kind == "exact" and "index_type" in given else own["index_str"])
    if kind == "exact" and string != "Flat":
        raise ConfigError(
            f"--retro-index-str {string}: the exact index has none; pass --retro-index-type faiss-par-add"
        )
    return {"index_type": kind, "index_str": string}


def _check_values(values: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    for name in _NUMBERS:
        if values[name] < 1:
            raise ConfigError(f"{name} {values[name]} must be 1 or larger")
    if values["seq_length"] % values["chunk_length"]:
        raise ConfigError(
            f"--retro-gpt-seq-length {values['seq_length']} is not a multiple of --retro-gpt-chunk-length "
            f"{values['chunk_length']}"
        )
    parse_split(values["split"])
    if own["num_neighbors"] > own["num_neighbors_query"]:
        raise ConfigError(
            f"--retro-query-num-neighbors-save {own['num_neighbors']} is more than --retro-query-num-neighbors-query "
            f"{own['num_neighbors_query']}"
        )
    for name in ("train_load_fraction", "add_load_fraction"):
        if not 0 < own[name] <= 1:
            raise ConfigError(f"--retro-index-{name.replace('_', '-')} {own[name]:g} must be above 0 and at most 1")
    if own["embedder"] == "hashed" and own["embedder_model"]:
        raise ConfigError(f"--retro-bert-model {own['embedder_model']}: is not read by --bert-embedder-type hashed")
    if own["embedder"] != "hashed" and not own["embedder_model"]:
        raise ConfigError(f"--bert-embedder-type {own['embedder']} needs --retro-bert-model FOLDER")


def _check_same(folder: Path, before: ProjectConfig, config: ProjectConfig) -> None:
    """Refuse to change what decides the database.

    Raises:
        ConfigError: as said.
    """
    for name, option in OPTIONS.items():
        if name in OWN_DEFAULTS:
            old, new = before.own.get(name, OWN_DEFAULTS[name]), config.own[name]
        else:
            old, new = getattr(before, name), getattr(config, name)
        if old != new:
            raise ConfigError(
                f"{option}: {folder} was made with {_shown(old)}, not {_shown(new)}; drop the option, or use another "
                "--retro-project-dir"
            )


def _shown(value: Any) -> str:
    if isinstance(value, TokenizerSpec):
        return " ".join(filter(None, (value.type, value.model, value.vocab_file, value.merge_file)))
    if isinstance(value, tuple):
        return " ".join(f"{weight:g} {prefix}" for weight, prefix in value)
    return "none" if value is None else str(value)


def _stored(path: str, folder: Path) -> str:
    """Return how ``config.json`` names a path: within the folder from there on, else from the root."""
    own = os.path.abspath(folder / path)
    whole = own if os.path.exists(own) else os.path.abspath(os.path.expanduser(path))
    inside = os.path.commonpath([whole, str(folder)]) == str(folder)
    return os.path.relpath(whole, folder) if inside else whole


def _tokenizer(folder: Path, given: Asked, before: ProjectConfig | None) -> TokenizerSpec:
    names = {
        "type": "tokenizer_type",
        "model": "tokenizer_model",
        "vocab_file": "vocab_file",
        "merge_file": "merge_file",
    }
    found = {field: given[name] for field, name in names.items() if name in given}
    if not found and before:
        return before.tokenizer
    paths: dict[str, Any] = {
        field: _stored(found[field], folder) for field in ("model", "vocab_file", "merge_file") if field in found
    }
    kind = found.get("type") or (before.tokenizer.type if before else "HFTokenizer")
    if not paths and kind != "NullTokenizer":
        raise ConfigError(
            "a new project needs the tokenizer of its token files: --retro-gpt-tokenizer-model FILE, or "
            "--retro-gpt-vocab-file and --retro-gpt-merge-file"
        )
    size = given.get("vocab_size") or (before.own.get("vocab_size", 0) if before else 0)
    return replace(TokenizerSpec(kind, vocab_size=int(size) if kind == "NullTokenizer" else 0), **paths)


def _bert_tokenizer(folder: Path, given: Asked, before: ProjectConfig | None, own: Mapping[str, Any]) -> TokenizerSpec:
    kind, vocab = given.get("bert_tokenizer_type"), given.get("bert_vocab_file")
    if not (kind or vocab) and before:
        return before.bert_tokenizer
    beside = folder / own["embedder_model"] / "vocab.txt"
    if not vocab and own["embedder_model"] and beside.is_file():
        vocab = str(beside)
    if not vocab:
        if kind not in (None, WORDS):
            raise ConfigError(f"--retro-bert-tokenizer-type {kind} needs --retro-bert-vocab-file")
        return TokenizerSpec(WORDS)
    if kind == WORDS:
        raise ConfigError(f"--retro-bert-vocab-file {vocab}: is not read by --retro-bert-tokenizer-type {WORDS}")
    return TokenizerSpec(kind or _case_of(Path(vocab)), vocab_file=_stored(vocab, folder))


def _case_of(vocab: Path) -> str:
    """Return the type of a BERT's tokenizer as the file next to its vocabulary says; without one lower case."""
    path = vocab.with_name("tokenizer_config.json")
    try:
        is_lower = read_json(path).get("do_lower_case", True)
    except FileNotFoundError:
        return "BertWordPieceLowerCase"
    except (OSError, ValueError, AttributeError):
        raise DataError(f"{path}: cannot be read as JSON; pass --retro-bert-tokenizer-type") from None
    return "BertWordPieceLowerCase" if is_lower else "BertWordPieceCase"


def _data_path(folder: Path, given: Asked, before: ProjectConfig | None) -> tuple[tuple[float, str], ...]:
    """Return weights and prefixes below ``data/``, where links to files elsewhere are made."""
    text, listed = given.get("data_path"), given.get("data_file_list")
    if text and listed:
        raise ConfigError(f"--retro-gpt-data-path {text} and --data-file-list {listed}: pass only one of them")
    if not (text or listed):
        if before:
            return before.data_path
        raise ConfigError("a new project needs its token files: --retro-gpt-data-path WEIGHT PREFIX WEIGHT PREFIX ...")
    if text:
        words = [_below_data(folder, word) for word in str(text).split()]
        shards = parse_data_path(" ".join(f'"{word}"' for word in words), name="--retro-gpt-data-path")
    else:
        shards = [each for each in read_file_list(Path(str(listed)), name="--data-file-list") if each.weight > 0]
    for again, first in repeated(shards):
        raise DataError(f"--retro-gpt-data-path: {again.prefix} is {first.prefix} again; name each file once")
    return tuple((shard.weight, _link(folder, shard)) for shard in shards)


def _below_data(folder: Path, word: str) -> str:
    """Return a prefix from the root where it is one below ``data/``, as Megatron's are."""
    whole = folder / "data" / word
    return str(whole) if Path(f"{whole}.idx").exists() else word


def _link(folder: Path, shard: Shard) -> str:
    """Return the prefix of a token file below ``data/``; one from elsewhere gets links there."""
    data = folder / "data"
    whole = Path(shard.prefix)
    if whole.is_relative_to(data):
        return str(whole.relative_to(data))
    open_dataset(shard.prefix)  # a wrong name is reported before anything is made
    for suffix in (".bin", ".idx"):
        link, target = data / (shard.corpus + suffix), shard.prefix + suffix
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists() and not link.is_symlink():
            link.symlink_to(target)
        if not (link.exists() and os.path.samefile(link, target)):
            raise DataError(f"{link}: is not {target}; remove it, or use another --retro-project-dir")
    return shard.corpus


def neighbor_dirs(project: Project) -> dict[str, str | None]:
    """Return the folder of each split's neighbours: equal settings of samples, index and search give equal names."""
    config = project.config
    decides = {name: getattr(config, name) for name in (*PLAIN, "chunk_length", "data_path")}
    decides |= {name: config.own[name] for name in _QUERY}
    decides["eval_interval"] = config.eval_interval > 0
    digest = hashlib.md5(json.dumps(decides, sort_keys=True).encode(), usedforsecurity=False).hexdigest()
    shares = parse_split(config.split)
    evaluates = config.eval_iters > 0 and config.eval_interval > 0
    used = {"train": True, "valid": evaluates and shares[1] > 0, "test": evaluates and shares[2] > 0}
    return {split: f"{split}_{digest}" if is_used else None for split, is_used in used.items()}
