"""Read the file that ``DATA_STAGES`` names; every error names the line of the file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from megads.config.data_stages.table import StageData, StageLength, StageRate
from megads.config.sources.parse import did_you_mean, switch
from megads.config.tree import read_value
from megads.errors import ConfigError
from megads.storage.reading import SMALL, parse_yaml, read_text

LENGTHS = {"tokens": "train.train_tokens", "samples": "train.train_samples", "iters": "train.train_iters"}
"""In which the length of a stage is given, and the setting whose form it has."""

KEYS = ("name", *LENGTHS, "data", "mixture", "seq", "global_batch", "seed", "planned", "past", "lr")
RATE_KEYS = ("peak", "warmup", "to", "shape", "cooldown")
SHAPES = ("linear", "cosine", "sqrt", "exponential")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", re.ASCII)
_LENGTH = re.compile(r"\s*([0-9][0-9_.eE+]*[KMBTkmbt]?)\s*(iters|iterations|steps|tokens|samples|%)\s*", re.ASCII)
_FORM = "'2000 iters', '1B tokens', '64 samples' or '10%'"
_MOST = 1000  # stages


@dataclass(frozen=True)
class GivenStage:
    """One stage as the file has it."""

    name: str
    where: str  # file and line
    line: int
    unit: str  # of its length, one of :data:`LENGTHS`
    length: int
    data: StageData
    seq: int = 0  # tokens of a sample; 0: as before
    batch: int = 0  # samples of a step; 0: GLOBAL_BATCH
    seed: int | None = None
    planned: int = 0  # in ``unit``
    rate: StageRate | None = None
    past: bool = False  # trained before this run branched off: nothing of it is read


def read_stages(path: Path) -> list[GivenStage]:
    """Return the stages in their order, at least one.

    Raises:
        ConfigError: the file cannot be read, or a line of it is not understood.
    """
    nodes = _nodes(path)
    stages: list[GivenStage] = []
    for node in nodes:
        stage = _read_stage(path, node, stages)
        if any(each.name == stage.name for each in stages):
            raise ConfigError(f"{stage.where}: a second stage named {stage.name}; give each a name of its own")
        stages.append(stage)
    return stages


def _nodes(path: Path) -> list[Any]:
    where = f"DATA_STAGES={path}"
    try:
        text = read_text(path, SMALL)
        parse_yaml(text)  # refuses what is too deep
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise ConfigError(f"{where}: {(error.strerror or str(error)).lower()}; pass a YAML file of stages") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: is not YAML ({error.problem})") from None
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{where}: {error!s:.200}") from None
    found = _pairs(path, root, ("stages",)).get("stages") if isinstance(root, yaml.MappingNode) else root
    if not isinstance(found, yaml.SequenceNode) or not 0 < len(found.value) <= _MOST:
        line = found.start_mark.line + 1 if found is not None else 1
        raise ConfigError(f"{path}:{line}: expected 'stages:' and a list below it, each with name and tokens")
    return list(found.value)


def _pairs(path: Path, node: Any, known: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of a mapping, as nodes, by key."""
    where = f"{path}:{node.start_mark.line + 1}"
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{where}: expected {', '.join(known[:3])} ... as 'key: value', got {_plain(node)!r:.80}")
    found: dict[str, Any] = {}
    for key, value in node.value:
        name, line = str(_plain(key)), f"{path}:{key.start_mark.line + 1}"
        if name not in known:
            raise ConfigError(f"{line}: no key {name!r} here{did_you_mean(name, known) or '; use ' + ', '.join(known)}")
        if name in found:
            raise ConfigError(f"{line}: {name} is given twice")
        found[name] = value
    return found


def _plain(node: Any) -> Any:
    """Return what a node holds, as YAML has it; the text of a number."""
    if isinstance(node, yaml.ScalarNode):
        return node.value
    if isinstance(node, yaml.SequenceNode):
        return [_plain(each) for each in node.value]
    return {str(_plain(key)): _plain(value) for key, value in node.value}


def _at(path: Path, node: Any, key: str) -> str:
    return f"{path}:{node.start_mark.line + 1}: {key}"


def _read_past(path: Path, found: dict[str, Any], before: Sequence[GivenStage]) -> bool:
    if "past" not in found:
        return False
    where = _at(path, found["past"], "past")
    try:
        is_past = switch(_plain(found["past"]))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    if is_past and before and not before[-1].past:
        raise ConfigError(f"{where}: stage {before[-1].name} is before it, and not past; put past stages first")
    return is_past


def _read_stage(path: Path, node: Any, stages_before: Sequence[GivenStage]) -> GivenStage:
    found = _pairs(path, node, KEYS)
    line = node.start_mark.line + 1
    name = str(_plain(found["name"])) if "name" in found else f"stage{len(stages_before) + 1}"
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{path}:{line}: name {name!r:.60} must be up to 40 letters, digits, '.', '_' or '-'")
    where = f"{path}:{line}: stage {name}"
    units = [unit for unit in LENGTHS if unit in found]
    if len(units) != 1:
        what = f"has {' and '.join(units)}" if units else "has no length"
        raise ConfigError(f"{where} {what}; give it one of {', '.join(LENGTHS)}")
    unit = units[0]
    length, planned = _whole(path, found, unit, LENGTHS[unit]), 0
    if "planned" in found:
        planned = _whole(path, found, "planned", LENGTHS[unit])
        if planned < length:
            raise ConfigError(f"{_at(path, found['planned'], 'planned')}: {planned} is less than {unit} {length}")
    return GivenStage(
        name,
        where,
        line,
        unit,
        length,
        _read_data(path, found),
        seq=_whole(path, found, "seq", "model.seq_length") if "seq" in found else 0,
        batch=_whole(path, found, "global_batch", "train.global_batch") if "global_batch" in found else 0,
        seed=_whole(path, found, "seed", "train.data_seed", least=0) if "seed" in found else None,
        planned=planned,
        rate=_read_rate(path, found["lr"]) if "lr" in found else None,
        past=_read_past(path, found, stages_before),
    )


def _whole(path: Path, found: dict[str, Any], key: str, like: str, least: int = 1) -> int:
    """Return the number of ``key``, in the form of the setting ``like``."""
    where = _at(path, found[key], key)
    value = int(read_value(like, _plain(found[key]), where))
    if value < least:
        raise ConfigError(f"{where}: {value} is less than {least}")
    return value


def _read_data(path: Path, found: dict[str, Any]) -> StageData:
    folder = path.absolute().parent
    data = StageData()
    if "data" in found:
        given, where = _plain(found["data"]), _at(path, found["data"], "data")
        if isinstance(given, str) and given.strip():
            data = StageData(file_list=str(folder / Path(given.strip()).expanduser()))
        elif isinstance(given, list) and given and all(isinstance(each, str) for each in given):
            data = StageData(lines=tuple(given))
        else:
            raise ConfigError(f"{where}: expected a data list, or lines '- WEIGHT PREFIX CORPUS', got {given!r:.80}")
    if "mixture" not in found:
        return data
    where, shares = _at(path, found["mixture"], "mixture"), _plain(found["mixture"])
    if not isinstance(shares, dict) or not shares:
        raise ConfigError(f"{where}: expected CORPUS: SHARE on each line, got {shares!r:.80}")
    mixture = tuple((name, _rate(share, f"{where}: {name}")) for name, share in shares.items())
    if not sum(share for _, share in mixture) > 0:
        raise ConfigError(f"{where}: all shares are 0; at least one must be positive")
    return StageData(data.file_list, data.lines, mixture)


def _rate(text: object, where: str) -> float:
    """Return a number from 0 on, in the form of LR."""
    return float(read_value("optim.lr", text, where))


def _read_rate(path: Path, node: Any) -> StageRate:
    """Return the learning rate of a stage: ``constant``, a number that it has from the first step on, or its parts."""
    where = _at(path, node, "lr")
    if isinstance(node, yaml.ScalarNode):
        if node.value == "constant":
            return StageRate()
        try:
            return StageRate(peak=_rate(node.value, where))
        except ConfigError:
            parts = ", ".join(RATE_KEYS)
            raise ConfigError(f"{where}: {node.value!r:.60} is not constant, a rate, or {{{parts}}}") from None
    found = _pairs(path, node, RATE_KEYS)
    rates = {key: _rate(_plain(found[key]), _at(path, found[key], key)) for key in ("peak", "to") if key in found}
    lengths = {key: _length(path, found, key) for key in ("warmup", "cooldown") if key in found}
    shape = str(_plain(found["shape"])) if "shape" in found else "cosine"
    if shape not in SHAPES:
        hint = did_you_mean(shape, SHAPES) or f"; use {', '.join(SHAPES)}"
        raise ConfigError(f"{_at(path, found['shape'], 'shape')}: no decay is called {shape!r:.40}{hint}")
    for key in ("shape", "cooldown"):
        if key in found and "to" not in found:
            raise ConfigError(f"{_at(path, found[key], key)} has no effect without 'to', the rate at the end")
    return StageRate(rates.get("peak"), lengths.get("warmup"), rates.get("to"), shape, lengths.get("cooldown"))


def _length(path: Path, found: dict[str, Any], key: str) -> StageLength:
    text, where = str(_plain(found[key])), _at(path, found[key], key)
    match = _LENGTH.fullmatch(text)
    if match is None:
        raise ConfigError(f"{where}: {text!r:.60} is not a length with its unit; write {_FORM}")
    number, unit = match[1], {"iterations": "iters", "steps": "iters"}.get(match[2], match[2])
    if unit != "%":
        return StageLength(float(read_value(LENGTHS[unit], number, where)), unit)
    share = _rate(number, where)
    if share > 100:
        raise ConfigError(f"{where}: {text} is more than the stage; write {_FORM}")
    return StageLength(share, unit)
