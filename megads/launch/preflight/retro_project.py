"""What a run on a Retro project takes from it: neighbours belong to the samples of one data, seed, split and length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megads.config.setting import Origin
from megads.config.settings.data import parse_split
from megads.config.sources.config_file import SHARES
from megads.config.sources.resolve import LENGTHS, Resolved, Values, rank_of
from megads.config.tree import env_name, fields, value_of
from megads.data.retro.project import CONFIG, Project, ProjectConfig, resolved
from megads.data.samples.retro.queried import data_path_of, is_retro
from megads.data.sources.file_list import parse_data_path
from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import identity, spec_of
from megads.errors import ConfigError

_BY_USER = rank_of(Origin("config"))
_TOKENIZER = ("data.tokenizer_type", "data.tokenizer_model", "data.vocab_file", "data.merge_file")
_OTHER_FILES = ("data.file_list", "data.valid_file_list", "data.test_file_list", "data.valid_path", "data.test_path")
_FIXED = ("data.last_epoch_cutoff", "data.split_rule")
"""Settings that change the samples, and that a project keeps no other value of than the default."""


def with_project(given: Resolved) -> Resolved:
    """Return the settings of a run with what its Retro project says; those of other runs as they are.

    Raises:
        ConfigError: the user's settings differ from the project's.
        DataError: the project cannot be read.
    """
    if not (is_retro(given.run) and given.run.data.retro_project_dir):
        return given
    project = Project.open(given.run.data.retro_project_dir)
    values = Values({name: value_of(given.run, name) for name in fields()}, dict(given.origins), list(given.notes))
    origin = Origin("derived", f"the Retro project {project.folder}")
    _check_files(values, given, project)
    _check_tokenizer(values, given, project)
    for name, value, same in _settings_of(given, project):
        if values.rank(name) >= _BY_USER and values[name] != "" and not same:
            raise ConfigError(
                f"{values.shown(name)}: the samples of {project.folder / CONFIG} were made with {env_name(name)}="
                f"{value}; leave {env_name(name)} unset, or query the neighbours of other samples"
            )
        values.put(name, value, origin)
    if all(values.rank(name) < _BY_USER or not values[name] for name in LENGTHS):
        for name in LENGTHS:
            values.put(name, 0, Origin("default"))
        values.put("train.train_samples", project.config.train_samples, origin)
    return values.resolved()


def _settings_of(given: Resolved, project: Project) -> Iterator[tuple[str, Any, bool]]:
    """Yield the settings that must be the project's: name, value there, and whether the run has the same."""
    run, config = given.run, project.config
    yield "model.seq_length", config.seq_length, run.model.seq_length == config.seq_length
    yield "model.retro_chunk_length", config.chunk_length, run.model.retro_chunk_length == config.chunk_length
    # A seed of its own: the run's SEED may be another one.
    same = run.train.seed_of_data == config.seed
    yield ("train.data_seed" if config.seed else "train.seed"), config.seed, same
    yield "data.split", config.split, _shares(run.data.split or config.split) == _shares(config.split)
    yield "data.path", data_path_of(project), _is_path(run.data.path, config, project.folder)
    for name in _FIXED:
        default = fields()[name].default
        yield name, default, value_of(run, name) == default
    tokenizer = resolved(config.tokenizer, project.folder)
    given_files = (tokenizer.type, tokenizer.model, tokenizer.vocab_file, tokenizer.merge_file)
    for name, value in zip(_TOKENIZER, given_files, strict=True):
        yield name, value, True  # compared by what the files say
    if tokenizer.type == "NullTokenizer" and tokenizer.vocab_size:
        same = run.model.vocab_size == tokenizer.vocab_size
        yield "model.vocab_size", tokenizer.vocab_size, same


def _shares(text: str) -> list[float]:
    shares = parse_split(text)
    return [round(each / sum(shares), 12) for each in shares]


def _is_path(text: str, config: ProjectConfig, folder: Path) -> bool:
    """Return whether a DATA_PATH names the files of a project, with the same shares."""
    if not text:
        return True
    files = [(shard.weight, Path(f"{shard.prefix}.bin")) for shard in parse_data_path(text)]
    theirs = [(weight, Path(f"{folder / 'data' / prefix}.bin")) for weight, prefix in config.data_path]
    total, their_total = (sum(weight for weight, _ in each) for each in (files, theirs))
    return len(files) == len(theirs) and all(
        abs(weight / total - other / their_total) < 1e-9 and _is_same(path, their_path)
        for (weight, path), (other, their_path) in zip(files, theirs, strict=True)
    )


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other) or (one.stat().st_size == other.stat().st_size and one.name == other.name)
    except OSError:
        return False


def _check_files(values: Values, given: Resolved, project: Project) -> None:
    """Refuse other ways to name data and its shares; a machine's list is dropped."""
    for name in SHARES:
        if values.rank(name) >= _BY_USER:
            raise ConfigError(
                f"{values.shown(name)}: {project.folder} has SPLIT={project.config.split}; leave {env_name(name)} unset"
            )
    for name in _OTHER_FILES:
        if not value_of(given.run, name):
            continue
        if values.rank(name) >= _BY_USER:
            raise ConfigError(f"{values.shown(name)}: a run on {project.folder} reads its files; leave it unset")
        values.put(name, "", Origin("default"))


def _check_tokenizer(values: Values, given: Resolved, project: Project) -> None:
    """Refuse a tokenizer of the user's that is not the project's."""
    named = [name for name in _TOKENIZER if values[name] and values.rank(name) >= _BY_USER]
    if not named:
        return
    theirs = resolved(project.config.tokenizer, project.folder)
    ours = spec_of(given.run)
    if _kind(ours) != _kind(theirs) or (ours.type != "NullTokenizer" and identity(ours) != identity(theirs)):
        raise ConfigError(
            f"{values.shown(named[0])}: the token files of {project.folder / CONFIG} were made with another tokenizer, "
            f"{theirs.type} {theirs.model or theirs.vocab_file}; leave it unset"
        )


def _kind(spec: TokenizerSpec) -> bool:
    return spec.type == "NullTokenizer"
