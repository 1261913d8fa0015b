"""``megads generate``: text from a trained model."""

from __future__ import annotations

import functools
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from megads.cli import fill_mask
from megads.cli.options.request import absolute, checkout
from megads.cli.options.retro import model_changes, retrieval_of, retro_options
from megads.cli.progress_bar import bar
from megads.cli.watched import watched
from megads.errors import ConfigError, MegadsError
from megads.storage.open_file import write_cure

if TYPE_CHECKING:
    from megads.inference.generate import Prompt
    from megads.inference.retro.neighbors import NeighborSource
    from megads.inference.sampling import Sampling
    from megads.inference.session import Session, SessionRequest

REPORT_S = 10.0
"""Seconds until another rank than 0 reports an error, which is its own if it is not ended before."""
_DEGREE, _COUNT = click.IntRange(min=1), click.IntRange(min=0)


_OF_MODEL = (
    click.argument("source", required=False, metavar="SRC"),
    click.option("--load", metavar="SRC", help="The same as SRC, as in other tools."),
    click.option("--tp", "--tensor-model-parallel-size", "tensor", type=_DEGREE, help="Tensor-parallel ranks (TP)."),
    click.option("--pp", "--pipeline-model-parallel-size", "pipeline", type=_DEGREE, help="Pipeline stages (PP)."),
    click.option("--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), help="Of weights; default: as in training."),
    click.option("--batch", "--micro-batch-size", type=_DEGREE, default=16, show_default=True, help="Texts at a time."),
    click.option("--context", "--seq-length", type=_DEGREE, help="Most tokens of a text; default: SEQ of training."),
    click.option("--tokenizer", metavar="PATH", help="tokenizer.json, .model or folder, instead of the model's."),
    click.option("--step", "--ckpt-step", type=_COUNT, help="The iteration to take; default: the newest."),
)


def model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the argument and options that name a model and its layout."""
    command = _reported_once(command)
    for each in reversed(_OF_MODEL):
        command = each(command)
    return command


def _reported_once(command: Callable[..., None]) -> Callable[..., None]:
    """Give rank 0 the time to report an error that all ranks find: the launcher ends the others then."""

    @functools.wraps(command)
    def reported_once(**options: Any) -> None:
        from megads.cluster.ranks import find_ranks

        try:
            command(**options)
        except MegadsError:
            if find_ranks(os.environ).rank > 0:
                time.sleep(REPORT_S)
            raise

    return reported_once


@click.command()
@model_options
@click.option("--prompt", "prompts", multiple=True, help="A text to continue; several times for several.")
@click.option("--input", "--sample-input-file", "source_file", metavar="FILE", help="JSON lines, or texts; -: a pipe.")
@click.option("--output", "--sample-output-file", "--genfile", "target", metavar="FILE", help="For JSON lines.")
@click.option("--num-samples", "--num_samples", type=_COUNT, default=0, help="Texts without a prompt.")
@click.option("--max-tokens", "--out-seq-length", type=_COUNT, default=64, show_default=True, help="At most generated.")
@click.option("--temperature", type=float, default=1.0, show_default=True, help="0: the most likely token.")
@click.option("--greedy", is_flag=True, help="The same as --temperature 0.")
@click.option("--top-k", "--top_k", type=int, default=0, help="Choose among the K most likely tokens; default: all.")
@click.option(
    "--top-p", "--top_p", type=float, default=1.0, help="Choose among the tokens that make up P; default: all."
)
@click.option("--min-p", type=float, default=0.0, help="Skip tokens below MIN_P times the most likely one.")
@click.option("--repetition-penalty", type=float, default=1.0, show_default=True, help="Above 1: fewer repetitions.")
@click.option("--stop", multiple=True, metavar="TEXT", help="A text that ends the output; several times for several.")
@click.option("--seed", "--random-seed", type=_COUNT, help="The same seed gives the same texts.")
@click.option("--logprobs", type=click.IntRange(0, 1000), help="Log-probabilities, and those of N most likely tokens.")
@click.option("--chat", is_flag=True, help="Each prompt is a question, in the chat template of the model.")
@click.option("--recompute", is_flag=True, hidden=True, help="Accepted; keys and values are always cached.")
@retro_options
def generate(**options: Any) -> None:
    """Continue texts with the model in SRC.

    SRC is a run, a folder of checkpoints, a checkpoint of any layout, Megatron's
    files, or a Hugging Face folder.
    With --prompt the text is printed as it is generated; with --input or --num-samples a JSON line for every
    text. Without any of them prompts are read from the terminal. With --chat a prompt is a question, and
    its answer is printed. A BERT fills [MASK] in a text: --top-k words of each.
    """
    degrees = degrees_of(options)
    _check_one_way(options)
    if target := options["target"]:
        if not absolute(target).parent.is_dir():
            raise ConfigError(f"--output {target}: its folder does not exist; create it, or pass another file")
        if absolute(target).is_dir():
            raise ConfigError(f"--output {target}: is a folder; pass a file")
    ranks = degrees["tensor"] * degrees["pipeline"]
    if ranks > 1 and not is_rank():
        if _is_interactive(options):
            raise ConfigError(
                "prompts from the terminal need one rank; pass --prompt, --input FILE or --input - (a pipe)"
            )
        sys.exit(start_ranks(ranks))
    _generate(degrees, options)


def degrees_of(options: Mapping[str, Any]) -> dict[str, int]:
    """Return tensor and pipeline degree, after checking that the model is named."""
    if not (options["source"] or options["load"]) or (options["source"] and options["load"]):
        raise ConfigError("pass the model once, as the first word, e.g. runs/7B")
    return {name: options[name] or degree_of(f"parallel.{name}") for name in ("tensor", "pipeline")}


def session_request(
    options: Mapping[str, Any],
    degrees: Mapping[str, int],
    num_slots: int,
    uses: tuple[str, ...] = ("causal",),
    model: Mapping[str, Any] | None = None,
) -> SessionRequest:
    """Return what to load, of the options of :func:`model_options`; the rest: see :class:`SessionRequest`."""
    from megads.inference.session import SessionRequest

    return SessionRequest(
        absolute(options["source"] or options["load"]),
        options["step"],
        **dict[str, Any](degrees),
        dtype=options["dtype"] or "",
        tokenizer=options["tokenizer"] or "",
        num_slots=num_slots,
        context=options["context"] or 0,
        timeout_s=_timeout_s(),
        uses=uses,
        model=model or {},
        replays=replays(),
    )


def replays() -> bool:
    """Return whether a model must compute what its run computed: not with ``REPLAY_ROWS=0`` in the environment."""
    from megads.config.tree import names_of

    return all(os.environ.get(name) != "0" for name in names_of("checkpoint.replay_rows"))


def _check_one_way(options: dict[str, Any]) -> None:
    given = [name for name, key in _WAYS.items() if options[key]]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)}: pass one of them")
    if options["greedy"] and options["temperature"] != 1:
        raise ConfigError(f"--greedy and --temperature {options['temperature']:g}: pass one of them")


_WAYS = {"--prompt": "prompts", "--input": "source_file", "--num-samples": "num_samples"}


def _is_interactive(options: dict[str, Any]) -> bool:
    return not any(options[key] for key in _WAYS.values())


def _timeout_s() -> float:
    """Return the longest wait for another rank that the environment gives, 0 without."""
    from megads.config.tree import names_of

    for name in names_of("launch.timeout_s"):
        if text := os.environ.get(name):
            with suppress(ValueError):
                if 0 < float(text) <= 1e6:
                    return float(text)
            raise ConfigError(f"{name}={text}: expected seconds, above 0")
    return 0.0


def degree_of(setting: str, default: int = 1) -> int:
    """Return the degree that the environment gives a setting, else ``default``."""
    from megads.config.tree import names_of

    for name in names_of(setting):
        if text := os.environ.get(name):
            if not text.isdecimal() or int(text) < 1:
                raise ConfigError(f"{name}={text}: expected an integer of 1 or more")
            return int(text)
    return default


def is_rank() -> bool:
    """Return whether this process is one of several ranks."""
    from megads.cluster.ranks import find_ranks

    return find_ranks(os.environ).world_size > 1


def start_ranks(ranks: int) -> int:
    """Start this command on every rank, and return the exit code."""
    from megads.launch.any_program import plan_program, run_program

    command = [sys.executable, "-m", "megads", *sys.argv[1:]]
    plan = plan_program(command, os.environ, hostname=socket.gethostname(), root=checkout(), ranks=ranks)
    return run_program(plan, os.environ)


def _sampling(options: dict[str, Any]) -> Sampling:
    from megads.inference.sampling import Sampling

    names = ("max_tokens", "top_k", "top_p", "min_p", "repetition_penalty", "stop", "seed", "logprobs")
    temperature = 0.0 if options["greedy"] else options["temperature"]
    is_scored = options["logprobs"] is not None
    # A top_p of 0 switches it off in Megatron's scripts.
    given = {name: options[name] for name in names} | {"top_p": options["top_p"] or 1.0}
    return Sampling(temperature=temperature, prompt_logprobs=is_scored, **given)


def _generate(degrees: dict[str, int], options: dict[str, Any]) -> None:
    """Load the model on this rank, and generate."""
    sampling = _sampling(options)
    from megads.comm.messages import broadcast_value
    from megads.inference.chat import as_chat
    from megads.inference.generate import Prompt, prompts_of, read_prompts
    from megads.inference.session import open_session

    prompts = [Prompt(text, number) for number, text in enumerate(options["prompts"])]
    is_piped = options["source_file"] == "-"
    if options["source_file"] and not is_piped:
        prompts = read_prompts(absolute(options["source_file"]))
    prompts += [Prompt("", number) for number in range(options["num_samples"])]
    slots = min(options["batch"], len(prompts)) if prompts else options["batch"] if is_piped else 1
    uses = ("causal", "t5", "bert", "retro")
    session = open_session(session_request(options, degrees, slots, uses, model_changes(options)), os.environ)
    retrieve = retrieval_of(session, options)
    answer = _answers(session, sampling, retrieve, is_chat=options["chat"])
    with watched(session):
        if session.speaks:
            for line in (*session.notes, session.summary):
                click.echo(f"megads: {line}", err=True)
        if is_piped:  # rank 0 has the pipe
            prompts = prompts_of(broadcast_value(sys.stdin.buffer.read() if session.speaks else None))
        if options["chat"]:
            prompts = [as_chat(session, prompt) for prompt in prompts]
        if _is_interactive(options):
            _converse(session, answer)
        elif options["prompts"] and not options["target"]:
            for place, prompt in enumerate(options["prompts"]):
                _print(session, prompt if session.continues and not options["chat"] else "")
                for piece in answer(prompt, place):
                    _print(session, piece)
                _print(session, "\n")
        else:
            records = _records(session, prompts, sampling, options, retrieve)
            _write_records(session, records, options["target"])


def _answers(
    session: Session, sampling: Sampling, retrieve: NeighborSource | None, *, is_chat: bool
) -> Callable[[str, int], Iterator[str]]:
    """Return what gives the pieces of what to print for a prompt; the seed is that of the command plus its place."""
    from megads.inference.chat import as_chat
    from megads.inference.generate import Prompt, stream

    if session.fills_masks:
        fill_mask.check_options()
        return fill_mask.answers(session, sampling.top_k)

    def answer(prompt: str, place: int) -> Iterator[str]:
        seed = None if sampling.seed is None else sampling.seed + place
        tokens = as_chat(session, Prompt(prompt)).tokens if is_chat else ()
        return stream(session, prompt, replace(sampling, seed=seed), retrieve, tokens=tokens)

    return answer


def _records(
    session: Session,
    prompts: list[Prompt],
    sampling: Sampling,
    options: dict[str, Any],
    retrieve: NeighborSource | None,
) -> list[dict[str, Any]]:
    from megads.inference.generate import generate as generate_records

    with bar("generating", "texts") as progress:
        if session.fills_masks:
            return fill_mask.records(session, prompts, options, progress)
        return generate_records(session, prompts, sampling, progress, retrieve)


def _print(session: Session, text: str) -> None:
    if session.speaks:
        click.echo(text, nl=False)
        sys.stdout.flush()


def _converse(session: Session, answer: Callable[[str, int], Iterator[str]]) -> None:
    """Read prompts from the terminal until it ends."""
    while True:
        try:
            prompt = input("prompt> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        if not prompt:
            continue
        try:
            for piece in answer(prompt, 0):
                _print(session, piece)
        except ConfigError as error:
            click.echo(f"megads: {error}", err=True)
        _print(session, "\n")


def _write_records(session: Session, records: list[dict[str, Any]], target: str | None) -> None:
    if not session.speaks:
        return
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    if not target:
        click.echo(lines, nl=False)
        return
    path = absolute(target)
    # A device or a pipe is written, not replaced.
    part = path if path.exists() and not path.is_file() else path.with_name(path.name + ".part")
    try:
        part.write_text(lines, encoding="utf8")
        if part != path:
            os.replace(part, path)
    except OSError as error:
        if part != path:
            part.unlink(missing_ok=True)
        raise ConfigError(f"--output {path}: {error.strerror}; {write_cure(error, 'pass another file')}") from None
    click.echo(f"megads: {path}: {len(records)} texts", err=True)
