"""Fill what follows from other settings and from the ranks. Each formula is written here, once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from megads.config.rules.advice import (
    Attempt,
    Broken,
    Change,
    Layout,
    Problem,
    divisors,
    each_of,
    multiples,
    nearest,
    put,
    refusal,
    shown,
)
from megads.config.rules.checks import problem_of
from megads.config.schedule.batches import BatchSchedule
from megads.config.schedule.lengths import fill_schedule, keep_first_limit, rises_to_the_end
from megads.config.schema import RunConfig
from megads.config.setting import Origin
from megads.config.sizes import data_degree, layout_text, model_degree
from megads.config.sources.megatron_defaults import LAYER as MEGATRON_LAYER
from megads.config.sources.megatron_defaults import MEGATRON, PADDING, PADDING_FLAG
from megads.config.sources.presets import preset_title
from megads.config.sources.resolve import SHARES, Resolved, rank_of
from megads.config.tree import env_name, fields, nested, value_of
from megads.errors import ConfigError, MegadsError
from megads.families.decoder import inner_width, padded_vocab_size
from megads.families.table import FAMILIES
from megads.text.plural import plural

__all__ = ["FILLED", "attempts", "check_vocab", "data_degree", "derive", "padded_vocab_size"]

FILLED = (
    *("model.num_kv_heads", "model.head_dim", "model.ffn_hidden_size", "model.max_positions", "model.vocab_size"),
    *("model.init_std", "parallel.data", "train.grad_acc_steps", "train.global_batch", "train.train_tokens"),
    *("train.train_samples", "train.train_iters", "optim.lr_decay_iters"),
    *("launch.ranks_per_host", "name"),
)
"""Settings of which 0 (or an empty text) means "derive it"."""


def check_vocab(run: RunConfig, tokenizer_vocab: int) -> None:
    """Refuse a tokenizer that knows more tokens than the model.

    Raises:
        ConfigError: ``VOCAB_SIZE`` is smaller than ``tokenizer_vocab``.
    """
    if run.model.vocab_size < tokenizer_vocab:
        raise ConfigError(
            f"VOCAB_SIZE={run.model.vocab_size} is smaller than the tokenizer's {plural(tokenizer_vocab, 'token')}; "
            f"use VOCAB_SIZE={tokenizer_vocab} or more, or another tokenizer"
        )


BY_USER = rank_of(Origin("env"))
"""Values of this layer and above are the user's."""


class _Filler:
    """Values while they are filled, with their origins."""

    def __init__(self, resolved: Resolved):
        self.values = {name: value_of(resolved.run, name) for name in fields()}
        self.origins = dict(resolved.origins)
        self.notes = list(resolved.notes)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def put(self, name: str, value: Any, formula: str) -> None:
        self.values[name] = value
        self.origins[name] = Origin("derived", formula)

    def fill(self, name: str, value: Any, formula: str) -> None:
        """Put a value if nobody gave one (0 or empty)."""
        if not self.values[name]:
            self.put(name, value, formula)

    def replace(self, name: str, value: Any, formula: str) -> None:
        """Put a value over a given one, and say so."""
        self.notes.append(f"{self.shown(name)} becomes {value}: {formula}")
        self.put(name, value, formula)

    def rank(self, name: str) -> int:
        return rank_of(self.origins[name])

    def shown(self, name: str) -> str:
        return f"{env_name(name)}={self.values[name]} ({self.origins[name]})"


RanksOf = Callable[[RunConfig], tuple[int, int]]
"""Returns the hosts of a run and the ranks on each."""


def derive(
    resolved: Resolved, *, num_hosts: int, ranks_per_host: int, vocab_size: int, ranks_of: RanksOf | None = None
) -> Resolved:
    """Return ``resolved`` with every value that was 0 for "derive it" filled.

    Args:
        resolved: from ``resolve``.
        num_hosts: hosts of the run.
        ranks_per_host: ranks on each of them.
        vocab_size: tokens of the tokenizer; 0 if there is none (NullTokenizer).
        ranks_of: what the hosts give another run, for advice; None: as many as this one.

    Raises:
        ConfigError: ranks, batches or lengths that cannot hold together, with the arithmetic
            and what would.
    """
    try:
        return _derived(resolved, num_hosts, ranks_per_host, vocab_size)
    except Broken as broken:
        ranks_of = ranks_of or (lambda run: (num_hosts, run.launch.ranks_per_host or ranks_per_host))
        raise ConfigError(refusal(broken.problem, attempts(resolved, ranks_of, vocab_size))) from None


def _derived(resolved: Resolved, num_hosts: int, ranks_per_host: int, vocab_size: int) -> Resolved:
    world_size = num_hosts * ranks_per_host
    problem = _layout(resolved.run, num_hosts, world_size)
    if problem:
        raise Broken(problem)
    filler = _Filler(resolved)
    filler.fill("parallel.data", data_degree(resolved.run, world_size), f"{world_size} ranks / (TP x PP x SP)")
    filler.fill("launch.ranks_per_host", ranks_per_host, "by the host")
    _check_recompute(filler)
    _check_split(filler)
    _fill_model(filler, vocab_size)
    _fill_batch(filler)
    _fill_length(filler)
    _fill_schedule(filler)
    _fill_name(filler)
    _settle_vocab(filler, vocab_size)
    run = _give_way(filler, world_size)
    check_vocab(run, vocab_size)
    rises = rises_to_the_end(Resolved(run, filler.origins))
    return Resolved(run, filler.origins, (*filler.notes, *([rises] if rises else [])))


def _fill_name(filler: _Filler) -> None:
    """Name the run by its preset, or a command of Megatron-LM by its ``--save``, which is all that tells two apart."""
    folder = Path(filler["checkpoint.dir"]).name.strip()
    if filler["preset"]:
        filler.fill("name", preset_title(filler["preset"]), "MODEL_ARCH")
    elif filler["defaults"] == MEGATRON and folder not in ("", ".."):
        filler.fill("name", folder[:100], "CKPT_DIR")
    filler.fill("name", filler["model.family"], "MODEL_FAMILY")


def _settle_vocab(filler: _Filler, tokenizer_vocab: int) -> None:
    """Let a preset's vocabulary be overridden by a tokenizer that knows more tokens."""
    name = "model.vocab_size"
    if filler[name] < tokenizer_vocab and filler.rank(name) < BY_USER:
        filler.replace(name, tokenizer_vocab, "the tokenizer's")


MOST_COUNTED = 2**53
"""Tokens; floats count them one by one up to here, and settings go no further."""
MOST_YIELDED = 10


def _give_way(filler: _Filler, world_size: int) -> RunConfig:
    """Let what only a default, a preset or a machine said be overridden by what the user gave, and note it."""
    run = RunConfig.model_validate(nested(filler.values))
    for _ in range(MOST_YIELDED):
        problem = problem_of(run, world_size)
        free = {name for name in problem.yields if name and filler.rank(name) < BY_USER} if problem else set()
        way = next((way for way in problem.ways if way.keys() <= free), None) if problem and free else None
        if problem is None or way is None:
            break
        for name, value in way.items():
            filler.replace(name, float(f"{value:.12g}") if isinstance(value, float) else value, problem.text)
        run = RunConfig.model_validate(nested(filler.values))
    return run


def attempts(
    resolved: Resolved, ranks_of: RanksOf, vocab_size: int, finish: Callable[[Resolved], Resolved] = lambda each: each
) -> Attempt:
    """Return what tries a change of ``resolved``, as if the user had given it too.

    Args:
        resolved: from ``resolve``.
        ranks_of: what the hosts give a run.
        vocab_size: tokens of the tokenizer.
        finish: what is done to derived settings before they are checked.
    """

    def attempt(change: Change) -> Layout | None:
        origins = resolved.origins | {
            name: Origin("cli" if resolved.origins[name].layer == "cli" else "env", env_name(name)) for name in change
        }
        changed = Resolved(put(resolved.run, change), origins)
        try:
            hosts, per_host = ranks_of(changed.run)
            world_size = hosts * per_host
            run = finish(_derived(changed, hosts, per_host, vocab_size)).run
        except Broken as broken:
            return Layout(changed.run, world_size, per_host, broken.problem)
        except MegadsError:
            return None
        return Layout(run, world_size, per_host, problem_of(run, world_size))

    return Attempt(attempt, resolved.origins)


def _layout(run: RunConfig, num_hosts: int, world_size: int) -> Problem | None:
    """Return what is wrong if the ranks cannot be split into the degrees that are given."""
    grid, used, layout = run.parallel, model_degree(run), layout_text(run)
    ranks = "launch.ranks_per_host"
    if world_size % used:
        more = [{ranks: each} for each in multiples(world_size, used)] if num_hosts == 1 else []
        return Problem(
            f"{plural(world_size, 'rank')} cannot be split into {layout} (= {used})",
            chain(_splits(run, world_size), more),
            "" if num_hosts == 1 else f"a multiple of {used} ranks",
            rule="ranks",
        )
    data = world_size // used
    if grid.data not in (0, data):
        ways: list[Change] = [{"parallel.data": data}]
        if num_hosts == 1:
            ways.append({ranks: used * grid.data})
        return Problem(f"DP={grid.data}, but {world_size} ranks / ({layout}) = {data}", ways, rule="data")
    return None


def _splits(run: RunConfig, world_size: int) -> Iterator[Change]:
    """Yield degrees that divide ``world_size``, the nearest to those of ``run`` first."""
    names = ("parallel.tensor", "parallel.pipeline", "parallel.sequence")
    given = tuple(value_of(run, name) for name in names)
    found = []
    for tensor in divisors(world_size):
        for pipeline in divisors(world_size // tensor):
            for sequence in divisors(world_size // (tensor * pipeline)):
                degrees = (tensor, pipeline, sequence)
                if all(new == 1 for new, old in zip(degrees, given, strict=True) if old == 1):
                    found.append(degrees)

    def distance(degrees: tuple[int, ...]) -> tuple[int, float, tuple[int, ...]]:
        ratios = [abs(math.log(new / old)) for new, old in zip(degrees, given, strict=True)]
        return sum(ratio > 0 for ratio in ratios), sum(ratios), degrees

    for degrees in sorted(found, key=distance):
        yield {name: new for name, new, old in zip(names, degrees, given, strict=True) if new != old}


def _check_recompute(filler: _Filler) -> None:
    """Refuse a method for the attention core alone, as Megatron-LM does: it has no layers to group."""
    kind, method = "recompute.granularity", "recompute.method"
    asked = filler.origins[method].layer != "default" and filler.rank(method) >= filler.rank(kind)
    if filler[kind] == "selective" and asked:
        full = shown({kind: "full"}, filler.origins)
        raise ConfigError(
            f"{filler.shown(method)} needs RECOMPUTE=full, and {filler.shown(kind)}; "
            f"use {full} or leave RECOMPUTE_METHOD unset"
        )


def _fill_model(filler: _Filler, vocab_size: int) -> None:
    hidden, heads = filler["model.hidden_size"], filler["model.num_heads"]
    filler.fill("model.num_kv_heads", heads, "HEADS")
    if not filler["model.head_dim"]:
        if hidden % heads:
            # Rotary positions need an even width of a head.
            widths = sorted(
                {*multiples(hidden, heads), *multiples(hidden, 2 * heads)}, key=lambda each: abs(each - hidden)
            )
            ways: list[Change] = [
                *each_of("model.hidden_size", widths),
                *each_of("model.num_heads", nearest(heads, divisors(hidden))),
                {"model.head_dim": max(2, hidden // heads // 2 * 2)},
            ]
            raise Broken(Problem(f"HIDDEN={hidden} is not a multiple of HEADS={heads}", ways, rule="head width"))
        filler.put("model.head_dim", hidden // heads, "HIDDEN / HEADS")
    filler.fill("model.ffn_hidden_size", *inner_width(filler["model.activation"], hidden))
    filler.fill("model.max_positions", filler["model.seq_length"], "SEQ")
    padding, tensor = filler.origins[PADDING], filler["parallel.tensor"]
    if tensor > 1 and (padding.layer == MEGATRON_LAYER.layer or padding.detail == PADDING_FLAG):
        one, named = filler[PADDING], PADDING_FLAG if padding.detail == PADDING_FLAG else MEGATRON_LAYER.detail
        filler.put(PADDING, one * tensor, f"{named} {one} x TP, as in Megatron-LM")
    if not filler["model.vocab_size"]:
        if not vocab_size:
            raise ConfigError(f"{env_name('data.tokenizer_type')}={filler['data.tokenizer_type']} needs VOCAB_SIZE")
        filler.put("model.vocab_size", vocab_size, "the tokenizer's")
    family = filler["model.family"]
    if std := FAMILIES[family].init_std:
        filler.fill("model.init_std", std, f"{std} for {family}")
    else:
        filler.fill("model.init_std", math.sqrt(2 / (5 * hidden)), "sqrt(2 / (5 HIDDEN))")


_GLOBAL, _STEPS, _MICRO = "train.global_batch", "train.grad_acc_steps", "train.micro_batch"
_BATCH_FORMULA = "MICRO_BATCH x GRAD_ACC_STEPS x DP"
_STEPS_FORMULA = "GLOBAL_BATCH / (MICRO_BATCH x DP)"


def _fill_batch(filler: _Filler) -> None:
    """Make GLOBAL_BATCH = MICRO_BATCH x GRAD_ACC_STEPS x DP hold."""
    total, steps, micro, data = (filler[name] for name in (_GLOBAL, _STEPS, _MICRO, "parallel.data"))
    if total and steps:
        # Of different layers only the higher was kept by ``resolve``, so the user gave both.
        if total != micro * steps * data:
            whole = total // (micro * data)
            text = (
                f"{filler.shown(_GLOBAL)} is not MICRO_BATCH x GRAD_ACC_STEPS x DP = {micro} x {steps} x {data} = "
                f"{micro * steps * data}"
            )
            either: list[Change] = [{_GLOBAL: micro * steps * data}, *each_of(_STEPS, [whole] if whole else [])]
            raise Broken(Problem(text, either, "leave one of GLOBAL_BATCH and GRAD_ACC_STEPS unset", rule="batch"))
    elif not total:
        filler.fill(_STEPS, 1, "1 unless GLOBAL_BATCH is given")
        filler.put(_GLOBAL, micro * filler[_STEPS] * data, _BATCH_FORMULA)
    else:
        if total % (micro * data):
            _fit_micro_batch(filler)
        filler.put(_STEPS, filler[_GLOBAL] // (filler[_MICRO] * data), _STEPS_FORMULA)


def _fit_micro_batch(filler: _Filler) -> None:
    """Make GLOBAL_BATCH a multiple of MICRO_BATCH x DP by the setting of the lower layer."""
    total, micro, data = filler[_GLOBAL], filler[_MICRO], filler["parallel.data"]
    layout = ("parallel.data", "parallel.tensor", "launch.ranks_per_host", _MICRO)
    chosen = max(filler.rank(name) for name in layout)
    if filler.rank(_MICRO) > filler.rank(_GLOBAL) or (total % data and chosen > filler.rank(_GLOBAL)):
        steps = max(1, round(total / (micro * data)))
        filler.replace(_GLOBAL, micro * steps * data, f"{_BATCH_FORMULA} = {micro} x {steps} x {data}")
    elif total % data == 0 and (filler.rank(_MICRO) < filler.rank(_GLOBAL) or filler.rank(_MICRO) < BY_USER):
        share = total // data
        fitting = max(size for size in range(1, min(micro, share) + 1) if share % size == 0)
        filler.replace(_MICRO, fitting, f"the largest that divides GLOBAL_BATCH / DP = {total} / {data}")
    elif filler.rank(_GLOBAL) < BY_USER:
        if micro > 1 and total < micro * data and filler.rank(_MICRO) < BY_USER:
            micro = max(1, total // data)
            filler.replace(_MICRO, micro, f"GLOBAL_BATCH / DP = {total} / {data}, at least 1")
        whole = max(1, round(total / (micro * data)))
        filler.replace(_GLOBAL, micro * whole * data, f"{_BATCH_FORMULA} = {micro} x {whole} x {data}")
    else:
        share = total // data if total % data == 0 else 0
        unit = micro * data if filler.rank(_MICRO) >= BY_USER else data
        smaller = [size for size in divisors(share) if size < micro]
        raise Broken(
            Problem(
                f"{filler.shown(_GLOBAL)} is not a multiple of MICRO_BATCH x DP = {micro} x {data} = {micro * data}",
                [*each_of(_MICRO, smaller[-1:]), *each_of(_GLOBAL, multiples(total, unit))],
                "another number of ranks",
                rule="batch",
            )
        )


def _check_split(filler: _Filler) -> None:
    """Refuse two ways to split of one layer; of different layers only the higher was kept by ``resolve``."""
    whole, single = "data.split", max(SHARES, key=filler.rank)
    if filler[whole] and filler.rank(single) == filler.rank(whole):
        raise ConfigError(f"{filler.shown(single)} and {filler.shown(whole)}: set only one of them")


_TOKENS, _SAMPLES, _ITERS = "train.train_tokens", "train.train_samples", "train.train_iters"
_EVALUATES = "train.evaluate_only"


def _fill_evaluation(filler: _Filler) -> None:
    """Take a TRAIN_ITERS of 0 that somebody gave, and no other length, for a run that evaluates only.

    The schedule stays that of a run: the lengths of its parts need not fit into no step.
    """
    rank = filler.rank(_ITERS)
    others = any(filler[name] and filler.rank(name) >= rank for name in (_TOKENS, _SAMPLES))
    if rank >= BY_USER and not filler[_ITERS] and not others:
        filler.put(_EVALUATES, True, "TRAIN_ITERS=0")
    if not filler[_EVALUATES]:
        return
    if not filler["train.eval_iters"]:
        raise ConfigError(
            f"{filler.shown(_EVALUATES)} evaluates only, and {filler.shown('train.eval_iters')} leaves nothing to "
            "evaluate; use EVAL_ITERS=20, or set TRAIN_ITERS"
        )
    if not (filler[_TOKENS] or filler[_SAMPLES]):
        filler.fill(_ITERS, 1, "no step is done")


def _fill_length(filler: _Filler) -> None:
    """Make TRAIN_ITERS the number of whole batches in the budget that was given."""
    batch, seq = filler[_GLOBAL], filler["model.seq_length"]
    schedule = BatchSchedule.parse(filler["train.rampup_batch_size"], batch)
    of_batches = f"GLOBAL_BATCH={batch} x SEQ={seq}" + (_RAMP if schedule.is_ramp else "")
    _fill_evaluation(filler)
    iters = {}
    if filler[_TOKENS]:
        iters[_TOKENS] = schedule.iterations_within(filler[_TOKENS] // seq)
    if filler[_SAMPLES]:
        iters[_SAMPLES] = schedule.iterations_within(filler[_SAMPLES])
    if filler[_ITERS]:
        iters[_ITERS] = filler[_ITERS]
    if not iters:
        raise ConfigError("TRAIN_TOKENS, TRAIN_SAMPLES and TRAIN_ITERS are all 0; set one of them")
    if len(set(iters.values())) > 1:
        note = keep_first_limit(filler.values, filler.origins, iters)
        if not note:
            each = ", ".join(f"{filler.shown(name)} is {count} steps" for name, count in iters.items())
            raise ConfigError(f"{each} of {of_batches}; set only one of them")
        filler.notes.append(note)
        iters = {name: count for name, count in iters.items() if filler[name]}
    source, count = next(iter(iters.items()))
    if not count:
        first = schedule.batch_at(0)
        one = f"{first * seq} tokens" if source == _TOKENS else f"{first} samples"
        least = first * seq if source == _TOKENS else first
        text = f"{filler.shown(source)} is less than one batch of {one} ({of_batches})"
        raise Broken(Problem(text, [{source: least}], "set TRAIN_ITERS", rule="length"))
    samples = schedule.samples_after(count)
    if samples * seq > MOST_COUNTED:
        raise ConfigError(
            f"{filler.shown(source)} of {of_batches} are {samples * seq} tokens, "
            f"more than 2**53; use a smaller {env_name(source)}"
        )
    ramp = _RAMP if schedule.is_ramp else ""
    formula = "TRAIN_TOKENS / (SEQ x GLOBAL_BATCH)" if source == _TOKENS else "TRAIN_SAMPLES / GLOBAL_BATCH"
    filler.fill(_ITERS, count, formula + ramp)
    filler.fill(_SAMPLES, samples, "TRAIN_ITERS x GLOBAL_BATCH" + ramp)
    filler.fill(_TOKENS, samples * seq, f"TRAIN_ITERS x GLOBAL_BATCH x SEQ{ramp}")


_RAMP = ", less in the ramp"


def _fill_schedule(filler: _Filler) -> None:
    found, formulas = fill_schedule(filler.values, filler.origins)
    for name, value in found.items():
        filler.put(name, value, formulas[name])
