"""``megads data merge``, ``info`` and ``check``: token files that are there already."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megads.cli.options.request import ManyWords
from megads.cli.progress_bar import bar
from megads.data.formats.prefix import strip_suffix
from megads.data.sources.file_list import Shard, read_file_list, repeated
from megads.errors import DataError, plain
from megads.text.plural import plural

if TYPE_CHECKING:
    from megads.data.token_files.inspect import Info, Lengths
    from megads.data.token_files.scan import Report
    from megads.data.tokenizers.base import Tokenizer

_BAR = 40  # characters of the longest bar of a histogram
_MANY = 12  # files of which each gets a line when all is well
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def _tokenizer_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name a tokenizer; the function gets them as keywords."""
    for name, metavar in (("merge-file", "FILE"), ("vocab-file", "FILE"), ("tokenizer-model", "PATH")):
        command = click.option(f"--{name}", metavar=metavar, help=f"As {name.upper().replace('-', '_')}.")(command)
    return click.option("--tokenizer-type", metavar="TYPE", help="As TOKENIZER_TYPE.")(command)


@click.command(cls=ManyWords)
@click.argument("prefixes", nargs=-1, metavar="[PREFIX]...")
@click.option("--datasets", multiple=True, metavar="PREFIX...", help="The same as PREFIX..., as in other tools.")
@click.option("--input", "folder", metavar="DIR", help="All token files of a folder, sorted by name.")
@click.option("--output-prefix", required=True, metavar="PREFIX", help="Where PREFIX.bin and PREFIX.idx are written.")
@click.option("--force", is_flag=True, help="Join files of different tokenizers, too; the result has no record.")
@click.option("--multimodal", is_flag=True, hidden=True)
@click.option("--merge", "_merge", type=click.Choice(["serial", "parallel", "distributed", "both"]), hidden=True)
@click.option("--torch-backend", type=click.Choice(["gloo", "mpi", "nccl"]), hidden=True)
def merge(
    prefixes: tuple[str, ...],
    datasets: tuple[str, ...],
    folder: str | None,
    output_prefix: str,
    force: bool,
    **_accepted: object,
) -> None:
    """Join token files into one, byte for byte as if their inputs had been preprocessed end to end.

    The files must agree in format and type of tokens, and in their tokenizer where it is recorded.
    """
    from megads.data.token_files import merge as merging

    names = [*prefixes, *datasets]
    if folder is not None:
        output = os.path.abspath(strip_suffix(output_prefix))
        # A result in the same folder, from the last time, is not its own input.
        found = merging.prefixes_in(Path(folder))
        names += [name for name in found if os.path.abspath(name) != output]
    if not names:
        raise DataError("nothing to merge; name prefixes, or --input DIR")
    with bar("merging") as progress:
        done = merging.merge(names, output_prefix, force=force, progress=progress)
    if done.note:
        click.echo(f"megads: {strip_suffix(output_prefix)}: {done.note}", err=True)
    click.echo(
        f"{strip_suffix(output_prefix)}: {plural(done.documents, 'document', ',')}, "
        f"{plural(done.sequences, 'sequence', ',')}, "
        f"{plural(done.tokens, 'token', ',')} of {plural(len(names), 'file')}"
    )


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="PREFIX|LIST|DIR...")
@_tokenizer_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each file.")
def info(names: tuple[str, ...], as_json: bool, **tokenizer: str | None) -> None:
    """Show what token files hold: counts, types, lengths of documents, and which tokenizer made them.

    With a tokenizer, the first tokens are shown as text.
    """
    from megads.data.token_files import inspect

    given = _tokenizer(**tokenizer)
    decode = _decoder(given)
    shards = [shard for name in names for shard in _shards(name)]
    total = sum(shard.weight for shard in shards)
    for shard in shards:
        found = inspect.info(shard.prefix)
        if as_json:
            extra = {"weight": shard.weight, "corpus": shard.corpus}
            facts = asdict(found)
            if found.record:
                facts["record"].pop("checksums")  # half a MiB of digits for a TB
            click.echo(json.dumps({**facts, **extra, "text": decode(found.first_tokens) if decode else None}))
            continue
        share = f"   {100 * shard.weight / total:.3g} % of samples, corpus {shard.corpus}" if len(shards) > 1 else ""
        click.echo(plain(f"{found.prefix}{share}"))
        for label, text in _rows(found, decode):
            click.echo(plain(f"  {label:10} {text}"))
        if given is not None and found.record and found.record.tokenizer != given.fingerprint:
            click.echo(f"megads: {plain(found.prefix)}: was made with a different tokenizer", err=True)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="PREFIX|LIST|DIR...")
@click.option("--vocab-size", type=click.IntRange(min=1), help="Token ids must be below; else as recorded.")
@_tokenizer_options
@click.option("--quick", is_flag=True, help="Skip most tokens: check index, sizes, record, a few blocks.")
@click.option("--threads", type=click.IntRange(min=1), help="Default: as many as there are cores.")
def check(
    names: tuple[str, ...], vocab_size: int | None, quick: bool, threads: int | None, **tokenizer: str | None
) -> None:
    """Check every number of the index, the sizes, every token id and the record of token files, or of a list of them.

    With a tokenizer, ids and records must be its own. Each problem is one line; with any, the exit
    code is 2.
    """
    from megads.cluster.machine import count_cores
    from megads.data.token_files.scan import check_all

    expected = _tokenizer(**tokenizer)
    shards = [shard for name in names for shard in _shards(name)]
    with bar("checking") as progress:
        reports = check_all(
            list(dict.fromkeys(shard.prefix for shard in shards)),
            vocab_size or (expected.vocab_size if expected else None),
            fingerprint=expected.fingerprint if expected else "",
            quick=quick,
            threads=threads or count_cores(),
            progress=progress,
        )
    problems = [problem for report in reports for problem in report.problems]
    problems += [f"{later.prefix}: is listed twice, also as {first.prefix}" for later, first in repeated(shards)]
    problems += _tokenizer_problems(reports)
    for problem in problems:
        click.echo(f"megads: {DataError(problem)}", err=True)
    _report_valid(reports)
    sys.exit(2 if problems else 0)


def _shards(name: str) -> list[Shard]:
    """Return what a word on the command line stands for: files, the files of a list, or of a folder."""
    prefix, path = strip_suffix(name), Path(name)
    if prefix != name or os.path.lexists(prefix + ".idx") or not os.path.lexists(name):
        return [Shard(1.0, prefix, Path(prefix).name)]
    if path.is_dir():
        from megads.data.token_files.merge import prefixes_in

        return [Shard(1.0, each, Path(each).name) for each in prefixes_in(path)]
    return read_file_list(path, os.environ, name="")


def _tokenizer_problems(reports: Sequence[Report]) -> Iterator[str]:
    """Yield a line for each file made with another tokenizer than the first that has a record."""
    known = [(report.prefix, report.record) for report in reports if report.record and not report.problems]
    for prefix, record in known:
        first_prefix, first = known[0]
        if record.tokenizer != first.tokenizer:
            yield (
                f"{prefix}: was made with {record.tokenizer_type} {record.tokenizer_name}, but {first_prefix} with "
                f"{first.tokenizer_type} {first.tokenizer_name}"
            )


def _report_valid(reports: Sequence[Report]) -> None:
    valid = [report for report in reports if not report.problems]
    for report in valid if len(valid) <= _MANY else ():
        highest = f", highest token {report.highest}" if report.highest >= 0 else ""
        counts = f"{plural(report.documents, 'document', ',')}, {plural(report.tokens, 'token', ',')}"
        click.echo(plain(f"{report.prefix}: valid, {counts}{highest}{_unknown(report)}"))
    if len(valid) > _MANY and (without := sum(1 for report in valid if _unknown(report))):
        click.echo(f"{without} of {plural(len(valid), 'file')} have no checksums recorded")
    if len(reports) > 1:
        tokens = sum(report.tokens for report in valid)
        click.echo(f"{len(valid)} of {plural(len(reports), 'file')} are valid, {plural(tokens, 'token', ',')}")


def _unknown(report: Report) -> str:
    """Return that nothing is known of what the bytes should be; Megatron's own files have no record."""
    return "" if report.record and report.record.checksums else ", no checksums recorded"


def _rows(found: Info, decode: Callable[[Sequence[int]], str] | None) -> Iterator[tuple[str, str]]:
    kind = {"mmap": "MMIDIDX (mmap)", "cached": "TNTIDX (cached, lazy)"}[found.impl]
    modes = ", multimodal" if found.multimodal else ""
    yield "format", f"{kind}, {found.dtype}{modes}, {_bytes(found.bin_bytes)} + {_bytes(found.index_bytes)} of index"
    yield "tokens", f"{found.tokens:,}"
    yield "documents", _length_text(found.documents)
    if found.sequences.count != found.documents.count - found.documents.empty:
        yield "sequences", _length_text(found.sequences)
    most = max((count for _, count in found.documents.histogram), default=0)
    for low, count in found.documents.histogram:
        if count:
            yield "", f"{low:>9,}+ {count:>12,} {'#' * max(1, _BAR * count // most)}"
    record = found.record
    if record:
        eod = f"eod {record.eod}" if record.eod is not None else "no eod"
        name = f"{record.tokenizer_type} {record.tokenizer_name}".rstrip()
        yield "tokenizer", f"{name}, vocabulary {record.vocab_size:,}, {eod}, {record.tokenizer[:12]}"
        if record.sources:
            more = f" and {len(record.sources) - 3} more" if len(record.sources) > 3 else ""
            yield "made from", f"{', '.join(record.sources[:3])}{more}, key {record.key}"
    else:
        yield "tokenizer", "not recorded"
    yield "begins", repr(decode(found.first_tokens)) if decode else " ".join(map(str, found.first_tokens))


def _length_text(lengths: Lengths) -> str:
    if not lengths.count:
        return "0"
    places = " ".join(f"{each}%:{value:,}" for each, value in lengths.percentiles.items())
    empty = f" ({lengths.empty:,} empty)" if lengths.empty else ""
    return (
        f"{lengths.count:,}{empty}, tokens each: {lengths.shortest:,} to {lengths.longest:,}, "
        f"mean {lengths.mean:,.1f}, {places}"
    )


def _bytes(size: float) -> str:
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.4g} {_UNITS[unit]}"


def _tokenizer(
    tokenizer_type: str | None, tokenizer_model: str | None, vocab_file: str | None, merge_file: str | None
) -> Tokenizer | None:
    """Return the tokenizer that the options of :func:`_tokenizer_options` name, if they name one."""
    if not (tokenizer_type or tokenizer_model or vocab_file or merge_file):
        return None
    from megads.data.tokenizers.base import TokenizerSpec
    from megads.data.tokenizers.build import make_tokenizer

    spec = TokenizerSpec(tokenizer_type or "HFTokenizer", tokenizer_model or "", vocab_file or "", merge_file or "")
    return make_tokenizer(spec)


def _decoder(tokenizer: Tokenizer | None) -> Callable[[Sequence[int]], str] | None:
    return None if tokenizer is None else lambda ids: tokenizer.decode([int(each) for each in ids])
