"""``megads detoxify annotate``: step 2."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megads.cli.options.request import absolute
from megads.cli.progress_bar import bar
from megads.errors import ConfigError
from megads.text.plural import plural

if TYPE_CHECKING:
    from megads.detoxify.annotate import Annotated
    from megads.detoxify.scoring import Scorer

_COUNT = click.IntRange(min=1)


class Number(click.FloatRange):
    """A number in a range; click takes nan for one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; see :class:`click.ParamType`."""
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value} is not a number.", param, ctx)
        return found


_POSITIVE = Number(min=0, min_open=True, max=1e6)


@click.command("annotate")
@click.argument("source", required=False, metavar="FILE")
@click.option("--data-path", "--input", "data_path", metavar="FILE", help="The same as FILE, as in Megatron-LM.")
@click.option("--output", "--out-path", "target", metavar="FILE", help="[default: FILE-annotated.jsonl]")
@click.option("--scorer", default="perspective", show_default=True, help="perspective, hf or stub.")
@click.option("--workers", type=_COUNT, default=10, show_default=True, help="perspective: requests at a time.")
@click.option("--qps", type=_POSITIVE, default=1.0, show_default=True, help="perspective: requests per second.")
@click.option("--key-env", metavar="NAME", help="perspective: variable with the key.  [default: PERSPECTIVE_API_KEY]")
@click.option("--key-file", metavar="FILE", help="perspective: file with the key.")
@click.option("--url", help="perspective: another server with the same protocol.")
@click.option("--timeout", "timeout_s", type=_POSITIVE, default=30.0, show_default=True, help="Seconds per request.")
@click.option("--attempts", type=_COUNT, default=8, show_default=True, help="Of one request, with growing waits.")
@click.option("--patience", type=_POSITIVE, default=600.0, show_default=True, help="Longest wait the server may ask.")
@click.option("--language", default="en", show_default=True, help="perspective: of the texts.")
@click.option("--model", metavar="DIR", help="hf: folder of a classifier.")
@click.option("--label", default="", help="hf: the class that stands for toxicity, if its name does not say so.")
@click.option("--batch", type=_COUNT, default=32, show_default=True, help="hf: texts at a time.")
@click.option("--words", metavar="FILE", help="stub: a word a line, instead of its own list.")
@click.option("--end-of-text", "ends", multiple=True, help="Removed from texts.  [default: <|endoftext|>]")
@click.option("--overwrite", is_flag=True, help="Replace a file that another command made.")
@click.option("--total", type=int, hidden=True, help="Accepted; the file is counted.")
def annotate_texts(**options: Any) -> None:
    """Add a toxicity score to each text of FILE, JSON lines with "text".

    Ctrl-C keeps what is scored; the same command resumes. The key of the API is never printed.
    """
    from megads.detoxify.annotate import END_OF_TEXT, annotate, look_at
    from megads.detoxify.output_lines import OutputLines

    path = input_of(options)
    target = absolute(options["target"] or f"{path}-annotated.jsonl")
    if target == path:
        raise ConfigError(f"--output {target}: is the input; pass another file")
    if "" in options["ends"]:
        raise ConfigError("--end-of-text '': expected a text")
    scorer = _scorer(options)
    source = look_at(path, options["ends"] or (END_OF_TEXT,))
    with OutputLines(target, source.about(scorer), overwrite=options["overwrite"]) as lines:
        if lines.is_complete:
            click.echo(f"{target}: {plural(lines.done, 'text')}, all by an earlier call")
            return
        with bar("scoring", "texts", lines=True) as progress:
            found = annotate(source, lines, scorer, progress)
    if found.ended_by:
        done = f"{found.had + found.new} of {plural(source.count, 'text')} scored"
        click.echo(f"megads: stopped by a signal, {done}; rerun the same command to resume", err=True)
        sys.exit(128 + found.ended_by)
    click.echo(f"{target}: {_summary(found)}")


def input_of(options: dict[str, Any]) -> Path:
    """Return the one file that a command reads."""
    if not (options["source"] or options["data_path"]) or (options["source"] and options["data_path"]):
        raise ConfigError("pass the file once, as the first word, e.g. texts.jsonl")
    return absolute(options["source"] or options["data_path"])


def _summary(found: Annotated) -> str:
    parts = [plural(found.had + found.new, "text")]
    parts += [f"{found.had} of them by an earlier call"] if found.had else []
    now = " now" if found.had else ""
    parts += [f"{found.empty}{now} empty: no score"] if found.empty else []
    parts += [f"{found.refused}{now} refused by the scorer: no score"] if found.refused else []
    return ", ".join(parts)


def _scorer(options: dict[str, Any]) -> Scorer:
    from megads.detoxify.perspective import URL, ServiceOptions
    from megads.detoxify.scoring import SCORERS, ScorerOptions

    name = options["scorer"]
    if name not in SCORERS:
        kinds = "; ".join(f"{each}: {row.help}" for each, row in SCORERS.items())
        raise ConfigError(f"--scorer {name}: not one of {kinds}")
    key = _key(options) if name == "perspective" else ""
    names = ("qps", "workers", "attempts", "timeout_s", "language")
    service = ServiceOptions(
        key, options["url"] or URL, patience_s=options["patience"], **{each: options[each] for each in names}
    )
    model, words = (absolute(options[each]) if options[each] else None for each in ("model", "words"))
    return SCORERS[name].make(ScorerOptions(service, model, options["label"], options["batch"], words))


def _key(options: dict[str, Any]) -> str:
    """Return the key of the API, of a file or a variable; empty: there is none."""
    from megads.detoxify.perspective import KEY_NAME
    from megads.storage.reading import SMALL, read_text

    if options["key_file"] and options["key_env"]:
        raise ConfigError("--key-file and --key-env: pass one of them")
    if options["key_file"]:
        path = absolute(options["key_file"])
        try:
            return read_text(path, SMALL).strip()
        except OSError as error:
            raise ConfigError(f"--key-file {path}: {error.strerror}") from None
        except ValueError as error:
            raise ConfigError(f"--key-file {path}: {error}") from None
    name = options["key_env"] or KEY_NAME
    if options["key_env"] and not os.environ.get(name):
        raise ConfigError(f"--key-env {name}: the variable is not set")
    return os.environ.get(name, "").strip()
