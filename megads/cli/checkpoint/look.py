"""``megads checkpoint list``, ``inspect`` and ``verify``: look at checkpoints, change nothing."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megads.cli.checkpoint import find_checkpoint
from megads.cli.progress_bar import bar
from megads.errors import CheckpointError, plain
from megads.text.plural import plural

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from megads.checkpoint.format.manifest import Manifest
    from megads.checkpoint.format.shard_layout import ShardLayout

_WIDE = 240
WIDE_LIST = 100  # characters of a list of checkpoints with all columns
_SETTINGS = (
    *("model.seq_length", "train.dtype", "train.global_batch", "train.train_iters", "train.seed"),
    *("optim.optimizer", "optim.lr", "optim.min_lr", "optim.weight_decay"),
    *("data.file_list", "data.tokenizer_type", "data.tokenizer_model"),
)
"""Of all the run's settings, those that tell checkpoints apart."""


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array instead of a table.")
def list_command(run: Path, as_json: bool) -> None:
    """Show the checkpoints of RUN, oldest first: a run, a folder of checkpoints or a checkpoint.

    One line each: iteration, samples, tokens, loss, size, the layout that wrote it, what it holds, and
    whether it is complete or why not. Sizes and names are checked, not every byte; `verify` does that.
    """
    from megads.checkpoint.format.folders import checkpoints_in, list_unfinished

    found = checkpoints_in(run)
    unfinished = [path for folder in (run, run / "checkpoints") for path in list_unfinished(folder)]
    if not found and not unfinished:
        find_checkpoint(run)  # raises why
    rows = [_row(path) for path in found] + [_unfinished(path) for path in unfinished]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        console = _console()
        console.print(_list_table(rows, console.width))


def _row(path: Path) -> dict[str, Any]:
    from megads.checkpoint.format.folders import iteration_of
    from megads.checkpoint.format.manifest import read_manifest

    row: dict[str, Any] = {"path": str(path), "iteration": iteration_of(path), "complete": False}
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        return {**row, "bytes": _bytes_in(path), "problem": str(error).removeprefix(f"{path}").lstrip("/: ")}
    progress = manifest.progress
    samples, length = progress.get("consumed_samples"), manifest.settings.get("model", {}).get("seq_length")
    return {
        **row,
        "iteration": manifest.iteration,
        "complete": True,
        "consumed_samples": samples,
        "consumed_tokens": samples * length if samples is not None and length else None,
        "loss": _finite(progress.get("last_loss")),
        "valid_loss": _finite(progress.get("last_valid_loss")),
        "bytes": manifest.bytes,
        "layout": dict(manifest.layout),
        "holds": _holds(manifest),
    }


def _unfinished(path: Path) -> dict[str, Any]:
    number = path.name.split("_")[1].split(".")[0]
    return {
        "path": str(path),
        "iteration": int(number) if number.isdigit() else -1,
        "complete": False,
        "bytes": _bytes_in(path),
        "problem": "incomplete: being written or removed, or left by a killed run",
    }


def _bytes_in(path: Path) -> int:
    total = 0
    for each in path.glob("*"):
        with suppress(OSError):  # it went while we looked
            total += each.stat().st_size
    return total


def _holds(manifest: Manifest) -> list[str]:
    return ["weights", "optimizer"] if manifest.has_optimizer else ["weights"]


def _finite(value: float | None) -> float | None:
    """Return what JSON can say."""
    return value if value is not None and math.isfinite(value) else None


def _list_table(rows: Iterable[Mapping[str, Any]], width: int) -> Table:
    """Return the table; one narrower than ``WIDE_LIST`` does without what can be worked out and what is usual."""
    is_wide = width >= WIDE_LIST
    numbers = ("iteration", *(("samples",) if is_wide else ()), "tokens", "loss", "size")
    table = _table(*numbers, left=("layout", *(("holds",) if is_wide else ()), "state"))
    for row in rows:
        state = "complete" if row["complete"] else f"{Path(row['path']).name}: {row['problem']}"
        had = row.get("layout")
        table.add_row(
            str(row["iteration"]),
            *((_count(row.get("consumed_samples")),) if is_wide else ()),
            _count(row.get("consumed_tokens")),
            f"{row['loss']:.4f}" if row.get("loss") is not None else "-",
            _size(row["bytes"]),
            _short_layout(had) if had else "-",
            *(("+".join(row.get("holds", ())) or "-",) if is_wide else ()),
            state,
        )
    return table


def _short_layout(had: Mapping[str, int]) -> str:
    """Return a layout as ``TP2 DP4 ZeRO1``: what is not split is not named."""
    degrees = (("TP", "tensor"), ("PP", "pipe"), ("SP", "seq"), ("DP", "data"))
    parts = [f"{name}{had[key]}" for name, key in degrees if had[key] > 1]
    return " ".join([*(parts or ["1 rank"]), f"ZeRO{had['zero_stage']}"])


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _size(count: int) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if count >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count / 1e3:.2f} kB"


def _table(*right: str, left: tuple[str, ...]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    for name in left:
        # Only the last column, a sentence, may take several lines.
        table.add_column(name, overflow="fold", no_wrap=name != left[-1])
    return table


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(width=_WIDE, highlight=False, markup=False)


@click.command()
@click.argument("ckpt", type=click.Path(path_type=Path))
@click.option("--pattern", default="*", help="Only tensors whose name matches, e.g. 'layers.0.*'.  [default: all]")
@click.option("--no-norms", is_flag=True, help="Shapes only; reads no tensor.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect_command(ckpt: Path, pattern: str, no_norms: bool, as_json: bool) -> None:
    """Show what the checkpoint CKPT holds: its run, and every tensor's shape, how it may be cut, and norms.

    CKPT is a run, a folder of checkpoints (the newest that is valid) or a checkpoint. Norms are L2, of the
    float32 weights and of the optimizer's moments; what is read for them is checked. Memory stays small.
    """
    from megads.checkpoint.format.reader import Reader
    from megads.checkpoint.format.verify import norms

    found = find_checkpoint(ckpt)
    manifest = found.manifest
    names = [name for name in manifest.tensors if fnmatchcase(name, pattern)]
    if not names:
        first = next(iter(manifest.tensors), "none")
        raise CheckpointError(f"{found.path}: no tensor matches {pattern!r}; the first one is {first}")
    about = _about(found.path, manifest)
    tensors = []
    with Reader(found.path, manifest) as reader, _bar("reading", _bytes_of(manifest, names)) as progress:
        for name in names:
            row: dict[str, Any] = {
                "name": name,
                "shape": list(manifest.tensors[name].shape),
                "cut": _cut_text(manifest.tensors[name]),
            }
            if not no_norms:
                row["norms"] = {kind: _finite(norm) for kind, norm in norms(reader, name).items()}
                progress(_bytes_of(manifest, [name]))
            tensors.append(row)
    if as_json:
        click.echo(json.dumps({**about, "tensors": tensors}, indent=1, default=str))
    else:
        _print_about(about)
        _console().print(_tensor_table(tensors, manifest.kinds))


def _bytes_of(manifest: Manifest, names: Iterable[str]) -> int:
    return sum(4 * math.prod(manifest.tensors[name].shape) for name in names) * len(manifest.kinds)


def _cut_text(cut: ShardLayout) -> str:
    """Return how tensor-parallel ranks share it."""
    if cut.dim is None:
        return "replicated on every rank"
    along = "columns" if cut.dim else "rows"
    return f"{along} of {' + '.join(map(str, cut.parts))}" if len(cut.parts) > 1 else along


def _about(path: Path, manifest: Manifest) -> dict[str, Any]:
    settings = {}
    for name in _SETTINGS:
        section, _, key = name.partition(".")
        value = manifest.settings.get(section, {}).get(key, "")
        if value != "":
            settings[name] = value
    return {
        "path": str(path),
        "iteration": manifest.iteration,
        "progress": {key: value for key, value in manifest.progress.items() if key != "iteration"},
        "layout": dict(manifest.layout),
        "holds": _holds(manifest),
        "kinds": list(manifest.kinds),
        "files": len(manifest.files),
        "bytes": manifest.bytes,
        "parameters": sum(math.prod(cut.shape) for cut in manifest.tensors.values()),
        "model": dict(manifest.model),
        "settings": settings,
        "scalars": dict(manifest.scalars),
        "states": {
            "parameters": len(manifest.states),
            "numbers": sum(sum(state.counts(name).values()) for name, state in manifest.states.items()),
        },
        "about": dict(manifest.about),
    }


def _print_about(about: Mapping[str, Any]) -> None:
    from megads.checkpoint.convert.reshard import layout_text
    from megads.checkpoint.function.record import KEY as FUNCTION

    lines = {
        "checkpoint": about["path"],
        "iteration": about["iteration"],
        "layout": layout_text(about["layout"]),
        "holds": f"{' '.join(about['holds'])}: {about['parameters']} parameters, {_size(about['bytes'])} in "
        f"{about['files']} files",
        **{name: _pairs(about[name]) for name in ("progress", "model", "settings", "scalars")},
        "about": _pairs({name: value for name, value in about["about"].items() if name != FUNCTION}),
        "function": _function(about["about"].get(FUNCTION, {})),
    }
    for name, line in lines.items():
        if line != "":
            click.echo(plain(f"{name:12}{line}"))
    click.echo()


def _function(found: Mapping[str, Any]) -> str:
    """Return the conventions of the weights, and the loss of the stored batch."""
    losses = found.get("losses", [])
    mean = f"loss {sum(losses) / len(losses):.4f} on {plural(len(losses), 'stored row')}: " if losses else ""
    return mean + "; ".join(f"{key}={value}" for key, value in found.get("conventions", {}).items())


def _pairs(values: Mapping[str, Any]) -> str:
    return "  ".join(f"{key}={value}" for key, value in values.items() if value not in (None, ""))


def _tensor_table(tensors: Iterable[Mapping[str, Any]], kinds: tuple[str, ...]) -> Table:
    table = _table(*(f"|{kind}|" for kind in kinds), "shape", left=("cut by", "name"))
    for row in tensors:
        found = row.get("norms")
        shown = ["-" if not found else "nan" if found[kind] is None else f"{found[kind]:.6g}" for kind in kinds]
        table.add_row(*shown, " x ".join(map(str, row["shape"])), row["cut"], plain(row["name"]))
    return table


@click.command()
@click.argument("ckpt", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--all", "every", is_flag=True, help="All checkpoints of a run or folder, not only the newest.")
def verify_command(ckpt: tuple[Path, ...], every: bool) -> None:
    """Read every byte of checkpoints and check it against what was written: one line for each that is right.

    CKPT is a run, a folder of checkpoints (its newest one; --all: all of them) or a checkpoint. Every block
    has a checksum, and every number of every tensor must be there once. Ends at the first damage, exit code 2.
    """
    from megads.checkpoint.format.folders import checkpoints_in
    from megads.checkpoint.format.manifest import read_manifest
    from megads.checkpoint.format.verify import verify

    for place in ckpt:
        found = checkpoints_in(place)
        if not found:
            find_checkpoint(place)
        for path in found if every else found[-1:]:
            started = time.perf_counter()
            with _bar(path.name, read_manifest(path).bytes) as progress:
                manifest = verify(path, progress)
            seconds = time.perf_counter() - started
            click.echo(
                f"{path}: unchanged since it was written; {plural(len(manifest.files), 'file')}, "
                f"{_size(manifest.bytes)}, "
                f"{manifest.bytes / 1e9 / seconds:.2f} GB/s"
            )


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar that is called with how many bytes more are done."""
    done = 0
    with bar(what) as show:

        def report(more: int) -> None:
            nonlocal done
            done += more
            show(done, total)

        yield report
