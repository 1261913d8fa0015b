"""Fill what follows from other settings and from the ranks. Each formula is written here, once."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from megads.config.data_stages.lengths import fill_longest, fill_stages
from megads.config.deepspeed.overrides import adopt
from megads.config.rules.advice import (
    Attempt,
    Broken,
    Change,
    Layout,
    Problem,
    Refused,
    divisors,
    each_of,
    multiples,
    nearest,
    put,
    refusal,
    shown,
)
from megads.config.rules.checks import problem_of
from megads.config.rules.host_counts import counts_that_fit
from megads.config.rules.layout import problem_of_ranks
from megads.config.schedule.batches import BatchSchedule
from megads.config.schedule.lengths import fill_schedule, keep_first_limit, repeat_samples, rises_to_the_end
from megads.config.schedule.planned import fill_planned, settle_order
from megads.config.schema import RunConfig
from megads.config.setting import Origin
from megads.config.sizes import data_degree
from megads.config.sources.config_file import SHARES
from megads.config.sources.megatron_defaults import LAYER as MEGATRON_LAYER
from megads.config.sources.megatron_defaults import MEGATRON, PADDING, PADDING_FLAG
from megads.config.sources.presets import preset_title
from megads.config.sources.resolve import LENGTHS, Resolved, Values, rank_of
from megads.config.tree import env_name, fields, value_of
from megads.errors import ConfigError, MegadsError
from megads.families.decoder import inner_width, padded_vocab_size
from megads.families.table import FAMILIES
from megads.text.plural import plural

__all__ = ["FILLED", "attempts", "check_vocab", "data_degree", "derive", "padded_vocab_size", "with_change"]

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


RanksOf = Callable[[RunConfig], tuple[int, int]]
"""Returns the hosts of a run and the ranks on each."""


def derive(
    resolved: Resolved, *, num_hosts: int, ranks_per_host: int, vocab_size: int, ranks_of: RanksOf | None = None
) -> Resolved:
    """Return ``resolved`` with every value that was 0 for "derive it" filled, and those of ``DS_CONFIG_OVERRIDES``.

    Args:
        vocab_size: tokens of the tokenizer; 0 if there is none (NullTokenizer).
        ranks_of: what the hosts give another run, for advice; None: as many as this one.

    Raises:
        ConfigError: ranks, batches or lengths that cannot hold together, with the arithmetic
            and what would.
    """
    try:
        return adopt(_derived(resolved, num_hosts, ranks_per_host, vocab_size))
    except Broken as broken:
        ranks_of = ranks_of or (lambda run: (num_hosts, run.launch.ranks_per_host or ranks_per_host))
        advice = refusal(broken.problem, attempts(resolved, ranks_of, vocab_size))
        raise Refused(advice, broken.problem) from None


def _derived(resolved: Resolved, num_hosts: int, ranks_per_host: int, vocab_size: int) -> Resolved:
    world_size = num_hosts * ranks_per_host
    problem = problem_of_ranks(resolved.run, num_hosts, world_size)
    if problem:
        raise Broken(problem)
    values = Values(
        {name: value_of(resolved.run, name) for name in fields()}, dict(resolved.origins), list(resolved.notes)
    )
    values.fill("parallel.data", data_degree(resolved.run, world_size), f"{world_size} ranks / (TP x PP x SP)")
    values.fill("launch.ranks_per_host", ranks_per_host, "by the host")
    _check_recompute(values)
    _check_split(values)
    settle_order(values)
    fill_longest(values)
    _fill_model(values, vocab_size)
    _fill_batch(values)
    fill_stages(values)
    _fill_length(values)
    fill_planned(values)
    fill_schedule(values)
    _fill_name(values)
    _settle_vocab(values, vocab_size)
    run = _override_defaults(values, world_size)
    check_vocab(run, vocab_size)
    rises = rises_to_the_end(values, run)
    return Resolved(run, values.origins, (*values.notes, *([rises] if rises else [])))


def _fill_name(values: Values) -> None:
    """Name the run by its preset, or a command of Megatron-LM by its ``--save``, which is all that tells two apart."""
    folder = Path(values["checkpoint.dir"]).name.strip()
    if values["preset"]:
        values.fill("name", preset_title(values["preset"]), "MODEL_ARCH")
    elif values["defaults"] == MEGATRON and folder not in ("", ".."):
        values.fill("name", folder[:100], "CKPT_DIR")
    values.fill("name", values["model.family"], "MODEL_FAMILY")


def _settle_vocab(values: Values, tokenizer_vocab: int) -> None:
    """Let a preset's vocabulary be overridden by a tokenizer that knows more tokens."""
    name = "model.vocab_size"
    if values[name] < tokenizer_vocab and values.rank(name) < BY_USER:
        values.replace(name, tokenizer_vocab, "the tokenizer's")


MOST_COUNTED = 2**53
"""Tokens; floats count them one by one up to here, and settings go no further."""
MOST_OVERRIDDEN = 10


def _override_defaults(values: Values, world_size: int) -> RunConfig:
    """Let what only a default, a preset or a machine said be overridden by what the user gave, and note it."""
    run = values.resolved().run
    for _ in range(MOST_OVERRIDDEN):
        problem = problem_of(run, world_size)
        free = {name for name in problem.overridable if name and values.rank(name) < BY_USER} if problem else set()
        way = next((way for way in problem.ways if way.keys() <= free), None) if problem and free else None
        if problem is None or way is None:
            break
        for name, value in way.items():
            values.replace(name, float(f"{value:.12g}") if isinstance(value, float) else value, problem.text)
        run = values.resolved().run
    return run


def attempts(resolved: Resolved, ranks_of: RanksOf, vocab_size: int) -> Attempt:
    """Return what tries a change of ``resolved``, as if the user had given it too."""

    def attempt(change: Change) -> Layout | None:
        try:
            return with_change(resolved, change, ranks_of, vocab_size)
        except MegadsError:
            return None

    return Attempt(attempt, resolved.origins)


def with_change(resolved: Resolved, change: Change, ranks_of: RanksOf, vocab_size: int) -> Layout:
    """Return ``resolved`` with ``change``, as if the user had given it too, derived, and the first rule it breaks.

    Raises:
        MegadsError: it cannot be derived, and no rule says why.
    """
    origins = resolved.origins | {
        name: Origin("cli" if resolved.origins[name].layer == "cli" else "env", env_name(name)) for name in change
    }
    changed = Resolved(put(resolved.run, change), origins)
    hosts, per_host = ranks_of(changed.run)
    world_size = hosts * per_host
    try:
        run = adopt(_derived(changed, hosts, per_host, vocab_size)).run
    except Broken as broken:
        return Layout(changed.run, world_size, per_host, broken.problem)
    return Layout(run, world_size, per_host, problem_of(run, world_size))


def _check_recompute(values: Values) -> None:
    """Refuse a method for the attention core alone, as Megatron-LM does: it has no layers to group."""
    kind, method = "recompute.granularity", "recompute.method"
    asked = values.origins[method].layer != "default" and values.rank(method) >= values.rank(kind)
    if values[kind] == "selective" and asked:
        full = shown({kind: "full"}, values.origins)
        raise ConfigError(
            f"{values.shown(method)} needs RECOMPUTE=full, and {values.shown(kind)}; "
            f"use {full} or leave RECOMPUTE_METHOD unset"
        )


def _fill_model(values: Values, vocab_size: int) -> None:
    hidden, heads = values["model.hidden_size"], values["model.num_heads"]
    values.fill("model.num_kv_heads", heads, "HEADS")
    if not values["model.head_dim"]:
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
        values.derive("model.head_dim", hidden // heads, "HIDDEN / HEADS")
    values.fill("model.ffn_hidden_size", *inner_width(values["model.activation"], hidden))
    values.fill("model.max_positions", values["model.seq_length"], "SEQ")
    if FAMILIES[values["model.family"]].samples == "t5":
        values.fill("model.decoder_layers", values["model.num_layers"], "NLAYERS")
        values.fill("model.decoder_seq_length", -(-values["model.seq_length"] // 2), "SEQ / 2")
    padding, tensor = values.origins[PADDING], values["parallel.tensor"]
    if tensor > 1 and (padding.layer == MEGATRON_LAYER.layer or padding.detail == PADDING_FLAG):
        one, named = values[PADDING], PADDING_FLAG if padding.detail == PADDING_FLAG else MEGATRON_LAYER.detail
        values.derive(PADDING, one * tensor, f"{named} {one} x TP, as in Megatron-LM")
    if not values["model.vocab_size"]:
        if not vocab_size:
            raise ConfigError(f"{env_name('data.tokenizer_type')}={values['data.tokenizer_type']} needs VOCAB_SIZE")
        values.derive("model.vocab_size", vocab_size, "the tokenizer's")
    family = values["model.family"]
    if std := FAMILIES[family].init_std:
        values.fill("model.init_std", std, f"{std} for {family}")
    else:
        values.fill("model.init_std", math.sqrt(2 / (5 * hidden)), "sqrt(2 / (5 HIDDEN))")


_GLOBAL, _STEPS, _MICRO = "train.global_batch", "train.grad_acc_steps", "train.micro_batch"
_BATCH_FORMULA = "MICRO_BATCH x GRAD_ACC_STEPS x DP"
_STEPS_FORMULA = "GLOBAL_BATCH / (MICRO_BATCH x DP)"


def _fill_batch(values: Values) -> None:
    """Make GLOBAL_BATCH = MICRO_BATCH x GRAD_ACC_STEPS x DP hold."""
    total, steps, micro, data = (values[name] for name in (_GLOBAL, _STEPS, _MICRO, "parallel.data"))
    if total and steps:
        # Of different layers only the higher was kept by ``resolve``, so the user gave both.
        if total != micro * steps * data:
            whole = total // (micro * data)
            text = (
                f"{values.shown(_GLOBAL)} is not MICRO_BATCH x GRAD_ACC_STEPS x DP = {micro} x {steps} x {data} = "
                f"{micro * steps * data}"
            )
            either: list[Change] = [{_GLOBAL: micro * steps * data}, *each_of(_STEPS, [whole] if whole else [])]
            raise Broken(Problem(text, either, "leave one of GLOBAL_BATCH and GRAD_ACC_STEPS unset", rule="batch"))
    elif not total:
        values.fill(_STEPS, 1, "1 unless GLOBAL_BATCH is given")
        values.derive(_GLOBAL, micro * values[_STEPS] * data, _BATCH_FORMULA)
    else:
        if total % (micro * data):
            _fit_micro_batch(values)
        values.derive(_STEPS, values[_GLOBAL] // (values[_MICRO] * data), _STEPS_FORMULA)


def _fit_micro_batch(values: Values) -> None:
    """Make GLOBAL_BATCH a multiple of MICRO_BATCH x DP by the setting of the lower layer."""
    total, micro, data = values[_GLOBAL], values[_MICRO], values["parallel.data"]
    layout = ("parallel.data", "parallel.tensor", "launch.ranks_per_host", _MICRO)
    chosen = max(values.rank(name) for name in layout)
    if values.rank(_MICRO) > values.rank(_GLOBAL) or (total % data and chosen > values.rank(_GLOBAL)):
        steps = max(1, round(total / (micro * data)))
        values.replace(_GLOBAL, micro * steps * data, f"{_BATCH_FORMULA} = {micro} x {steps} x {data}")
    elif total % data == 0 and (values.rank(_MICRO) < values.rank(_GLOBAL) or values.rank(_MICRO) < BY_USER):
        share = total // data
        fitting = max(size for size in range(1, min(micro, share) + 1) if share % size == 0)
        values.replace(_MICRO, fitting, f"the largest that divides GLOBAL_BATCH / DP = {total} / {data}")
    elif values.rank(_GLOBAL) < BY_USER:
        if micro > 1 and total < micro * data and values.rank(_MICRO) < BY_USER:
            micro = max(1, total // data)
            values.replace(_MICRO, micro, f"GLOBAL_BATCH / DP = {total} / {data}, at least 1")
        whole = max(1, round(total / (micro * data)))
        values.replace(_GLOBAL, micro * whole * data, f"{_BATCH_FORMULA} = {micro} x {whole} x {data}")
    else:
        share = total // data if total % data == 0 else 0
        unit = micro * data if values.rank(_MICRO) >= BY_USER else data
        smaller = [size for size in divisors(share) if size < micro]
        raise Broken(
            Problem(
                f"{values.shown(_GLOBAL)} is not a multiple of MICRO_BATCH x DP = {micro} x {data} = {micro * data}",
                [*each_of(_MICRO, smaller[-1:]), *each_of(_GLOBAL, multiples(total, unit))],
                _counts(values),
                rule="batch",
            )
        )


def _counts(values: Values) -> str:
    """Return on how many hosts or ranks GLOBAL_BATCH can be shared out; a micro-batch of the user's is kept."""
    micro = values[_MICRO] if values.rank(_MICRO) >= max(BY_USER, values.rank(_GLOBAL)) else 1
    per_host, layout = values["launch.ranks_per_host"], ("tensor", "pipeline", "sequence")
    degree = math.prod(values[f"parallel.{axis}"] for axis in layout)
    hosts = max(1, values["parallel.data"] * degree // per_host)
    return counts_that_fit(values[_GLOBAL], micro, degree, per_host, hosts)


def _check_split(values: Values) -> None:
    """Refuse two ways to split of one layer; of different layers only the higher was kept by ``resolve``."""
    whole, single = "data.split", max(SHARES, key=values.rank)
    if values[whole] and values.rank(single) == values.rank(whole):
        raise ConfigError(f"{values.shown(single)} and {values.shown(whole)}: set only one of them")


_RAMP = ", less in the ramp"
_TOKENS, _SAMPLES, _ITERS = LENGTHS
_EVALUATES = "train.evaluate_only"


def _fill_evaluation(values: Values) -> None:
    """Take a TRAIN_ITERS of 0 that somebody gave, and no other length, for a run that evaluates only.

    The schedule stays that of a run: the lengths of its parts need not fit into no step.
    """
    rank = values.rank(_ITERS)
    others = any(values[name] and values.rank(name) >= rank for name in (_TOKENS, _SAMPLES))
    if rank >= BY_USER and not values[_ITERS] and not others:
        values.derive(_EVALUATES, True, "TRAIN_ITERS=0")
    if not values[_EVALUATES]:
        return
    if not values["train.eval_iters"]:
        raise ConfigError(
            f"{values.shown(_EVALUATES)} evaluates only, and {values.shown('train.eval_iters')} leaves nothing to "
            "evaluate; use EVAL_ITERS=20, or set TRAIN_ITERS"
        )
    if not (values[_TOKENS] or values[_SAMPLES]):
        values.fill(_ITERS, 1, "no step is done")


def _fill_length(values: Values) -> None:
    """Make TRAIN_ITERS the number of whole batches in the budget that was given."""
    if values["data.stage_table"]:
        return
    batch, seq = values[_GLOBAL], values["model.seq_length"]
    schedule = BatchSchedule.parse(values["train.rampup_batch_size"], batch)
    of_batches = f"GLOBAL_BATCH={batch} x SEQ={seq}" + (_RAMP if schedule.is_ramp else "")
    repeat_samples(values)
    _fill_evaluation(values)
    iters = {}
    if values[_TOKENS]:
        iters[_TOKENS] = schedule.iterations_within(values[_TOKENS] // seq)
    if values[_SAMPLES]:
        iters[_SAMPLES] = schedule.iterations_within(values[_SAMPLES])
    if values[_ITERS]:
        iters[_ITERS] = values[_ITERS]
    if not iters:
        raise ConfigError("TRAIN_TOKENS, TRAIN_SAMPLES and TRAIN_ITERS are all 0; set one of them")
    if len(set(iters.values())) > 1:
        note = keep_first_limit(values, iters)
        if not note:
            each = ", ".join(f"{values.shown(name)} is {count} steps" for name, count in iters.items())
            raise ConfigError(f"{each} of {of_batches}; set only one of them")
        values.notes.append(note)
        iters = {name: count for name, count in iters.items() if values[name]}
    source, count = next(iter(iters.items()))
    if not count:
        first = schedule.batch_at(0)
        one = f"{first * seq} tokens" if source == _TOKENS else f"{first} samples"
        least = first * seq if source == _TOKENS else first
        text = f"{values.shown(source)} is less than one batch of {one} ({of_batches})"
        raise Broken(Problem(text, [{source: least}], "set TRAIN_ITERS", rule="length"))
    samples = schedule.samples_after(count)
    if samples * seq > MOST_COUNTED:
        raise ConfigError(
            f"{values.shown(source)} of {of_batches} are {samples * seq} tokens, "
            f"more than 2**53; use a smaller {env_name(source)}"
        )
    ramp = _RAMP if schedule.is_ramp else ""
    formula = "TRAIN_TOKENS / (SEQ x GLOBAL_BATCH)" if source == _TOKENS else "TRAIN_SAMPLES / GLOBAL_BATCH"
    values.fill(_ITERS, count, formula + ramp)
    values.fill(_SAMPLES, samples, "TRAIN_ITERS x GLOBAL_BATCH" + ramp)
    values.fill(_TOKENS, samples * seq, f"TRAIN_ITERS x GLOBAL_BATCH x SEQ{ramp}")
