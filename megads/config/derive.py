"""Fill what follows from other settings and from the ranks. Each formula is written here, once."""

from __future__ import annotations

import math
from typing import Any

from megads.config.parse import LARGEST
from megads.config.resolve import Resolved, rank_of
from megads.config.schema import ModelConfig, RunConfig
from megads.config.setting import Origin
from megads.config.tree import env_name, fields, nested, value_of
from megads.errors import ConfigError

FILLED = (
    *("model.num_kv_heads", "model.head_dim", "model.ffn_hidden_size", "model.max_positions", "model.vocab_size"),
    *("model.init_std", "parallel.data", "train.grad_acc_steps", "train.global_batch", "train.train_tokens"),
    *("train.train_samples", "train.train_iters", "optim.lr_decay_iters"),
    *("launch.ranks_per_host", "name"),
)
"""Settings of which 0 (or an empty text) means "derive it"."""


def padded_vocab_size(model: ModelConfig) -> int:
    """Return ``vocab_size`` rounded up to a multiple of ``vocab_multiple``; rows of the embedding."""
    return -(-model.vocab_size // model.vocab_multiple) * model.vocab_multiple


def data_degree(run: RunConfig, world_size: int) -> int:
    """Return the data-parallel degree that fills ``world_size`` ranks.

    Raises:
        ConfigError: the ranks can not be split, or a given ``DP`` is another number.
    """
    grid = run.parallel
    used = grid.tensor * grid.pipeline * grid.sequence
    layout = f"TP={grid.tensor} x PP={grid.pipeline} x SP={grid.sequence}"
    if world_size % used:
        raise ConfigError(
            f"{world_size} ranks can not be split into {layout} (= {used}); "
            f"use a multiple of {used} ranks or lower one degree"
        )
    data = world_size // used
    if grid.data not in (0, data):
        raise ConfigError(
            f"DP={grid.data}, but {world_size} ranks / ({layout}) = {data}; "
            f"leave DP unset or use {used * grid.data} ranks"
        )
    return data


def check_vocab(run: RunConfig, tokenizer_vocab: int) -> None:
    """Refuse a tokenizer that knows more tokens than the model.

    Raises:
        ConfigError: ``VOCAB_SIZE`` is smaller than ``tokenizer_vocab``.
    """
    if run.model.vocab_size < tokenizer_vocab:
        raise ConfigError(
            f"VOCAB_SIZE={run.model.vocab_size} is smaller than the tokenizer's {tokenizer_vocab} tokens; "
            f"use VOCAB_SIZE={tokenizer_vocab} or more, or another tokenizer"
        )


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


def derive(resolved: Resolved, *, num_hosts: int, ranks_per_host: int, vocab_size: int) -> Resolved:
    """Return ``resolved`` with every value that was 0 for "derive it" filled.

    Args:
        resolved: from ``resolve``.
        num_hosts: hosts of the run.
        ranks_per_host: ranks on each of them.
        vocab_size: tokens of the tokenizer; 0 if there is none (NullTokenizer).

    Raises:
        ConfigError: ranks, batches or lengths that can not hold together, with the arithmetic.
    """
    world_size = num_hosts * ranks_per_host
    data = data_degree(resolved.run, world_size)
    filler = _Filler(resolved)
    filler.fill("parallel.data", data, f"{world_size} ranks / (TP x PP x SP)")
    filler.fill("launch.ranks_per_host", ranks_per_host, "by the host")
    _fill_model(filler, vocab_size)
    _fill_batch(filler)
    _fill_length(filler)
    _fill_schedule(filler)
    filler.fill(
        "name", filler["preset"] or filler["model.family"], "MODEL_ARCH" if filler["preset"] else "MODEL_FAMILY"
    )
    run = RunConfig.model_validate(nested(filler.values))
    check_vocab(run, vocab_size)
    return Resolved(run, filler.origins, tuple(filler.notes))


def _fill_model(filler: _Filler, vocab_size: int) -> None:
    hidden, heads = filler["model.hidden_size"], filler["model.num_heads"]
    filler.fill("model.num_kv_heads", heads, "HEADS")
    if not filler["model.head_dim"]:
        if hidden % heads:
            raise ConfigError(
                f"HIDDEN={hidden} is not a multiple of HEADS={heads}; use HIDDEN={_nearest(hidden, heads)} "
                f"or give HEAD_DIM"
            )
        filler.put("model.head_dim", hidden // heads, "HIDDEN / HEADS")
    if filler["model.activation"] == "swiglu":
        # Two thirds of 4 HIDDEN keep the parameters of an MLP without gate; Megatron-LM rounds down to 64.
        filler.fill("model.ffn_hidden_size", max(64, int(8 * hidden / 3 / 64) * 64), "8/3 HIDDEN, a multiple of 64")
    else:
        filler.fill("model.ffn_hidden_size", 4 * hidden, "4 HIDDEN")
    filler.fill("model.max_positions", filler["model.seq_length"], "SEQ")
    if not filler["model.vocab_size"]:
        if not vocab_size:
            raise ConfigError(f"{env_name('data.tokenizer_type')}={filler['data.tokenizer_type']} needs VOCAB_SIZE")
        filler.put("model.vocab_size", vocab_size, "the tokenizer's")
    if filler["model.family"] == "gpt":
        filler.fill("model.init_std", 0.02, "0.02 for gpt")
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
            raise ConfigError(
                f"{filler.shown(_GLOBAL)} is not MICRO_BATCH x GRAD_ACC_STEPS x DP = {micro} x {steps} x {data} = "
                f"{micro * steps * data}; leave one of GLOBAL_BATCH and GRAD_ACC_STEPS unset"
            )
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
    by_user = rank_of(Origin("env"))
    if filler.rank(_MICRO) > filler.rank(_GLOBAL) or (total % data and chosen > filler.rank(_GLOBAL)):
        steps = max(1, round(total / (micro * data)))
        filler.replace(_GLOBAL, micro * steps * data, f"{_BATCH_FORMULA} = {micro} x {steps} x {data}")
    elif total % data == 0 and (filler.rank(_MICRO) < filler.rank(_GLOBAL) or filler.rank(_MICRO) < by_user):
        share = total // data
        fitting = max(size for size in range(1, min(micro, share) + 1) if share % size == 0)
        filler.replace(_MICRO, fitting, f"the largest that divides GLOBAL_BATCH / DP = {total} / {data}")
    else:
        raise ConfigError(
            f"{filler.shown(_GLOBAL)} is not a multiple of MICRO_BATCH x DP = {micro} x {data} = {micro * data}; "
            f"use GLOBAL_BATCH={_nearest(total, micro * data)}, or another MICRO_BATCH or number of ranks"
        )


_TOKENS, _SAMPLES, _ITERS = "train.train_tokens", "train.train_samples", "train.train_iters"


def _fill_length(filler: _Filler) -> None:
    """Make TRAIN_ITERS the number of whole batches in the budget that was given."""
    batch, seq = filler[_GLOBAL], filler["model.seq_length"]
    iters = {}
    if filler[_TOKENS]:
        iters[_TOKENS] = filler[_TOKENS] // (seq * batch)
    if filler[_SAMPLES]:
        iters[_SAMPLES] = filler[_SAMPLES] // batch
    if filler[_ITERS]:
        iters[_ITERS] = filler[_ITERS]
    if not iters:
        raise ConfigError("TRAIN_TOKENS, TRAIN_SAMPLES and TRAIN_ITERS are all 0; give one of them")
    if len(set(iters.values())) > 1:
        each = ", ".join(f"{filler.shown(name)} is {count} steps" for name, count in iters.items())
        raise ConfigError(f"{each} of GLOBAL_BATCH={batch} x SEQ={seq}; give only one of them")
    source, count = next(iter(iters.items()))
    if not count:
        one = f"{batch * seq} tokens" if source == _TOKENS else f"{batch} samples"
        raise ConfigError(
            f"{filler.shown(source)} is less than one batch of {one} (GLOBAL_BATCH={batch} x SEQ={seq}); "
            f"give at least one batch, or TRAIN_ITERS"
        )
    if count * batch * seq > LARGEST:
        raise ConfigError(
            f"{filler.shown(source)} of GLOBAL_BATCH={batch} x SEQ={seq} are {count * batch * seq} tokens, "
            f"more than 2**63 - 1; give a smaller {env_name(source)}"
        )
    formula = "TRAIN_TOKENS / (SEQ x GLOBAL_BATCH)" if source == _TOKENS else "TRAIN_SAMPLES / GLOBAL_BATCH"
    filler.fill(_ITERS, count, formula)
    filler.fill(_SAMPLES, count * batch, "TRAIN_ITERS x GLOBAL_BATCH")
    filler.fill(_TOKENS, count * batch * seq, "TRAIN_ITERS x GLOBAL_BATCH x SEQ")


def _fill_schedule(filler: _Filler) -> None:
    """Derive the decay from TRAIN_ITERS; refuse two lengths of the warm-up.

    A warm-up that is given as a fraction stays one: the schedule counts samples, so that it
    need not be a whole number of steps.
    """
    decay_name, warmup_name, share_name = "optim.lr_decay_iters", "optim.lr_warmup_iters", "optim.lr_warmup_frac"
    filler.fill(decay_name, filler[_ITERS], "TRAIN_ITERS")
    decay, share = filler[decay_name], filler[share_name]
    given, by_share = filler[warmup_name], share * decay
    same_layer = filler.origins[share_name].layer == filler.origins[warmup_name].layer != "default"
    if given and same_layer and not math.isclose(given, by_share):
        raise ConfigError(
            f"{filler.shown(warmup_name)} and {filler.shown(share_name)} = {by_share:g} of {decay} steps differ; "
            f"leave one of them unset"
        )
    if (given or by_share) >= filler[_ITERS] > 1:
        name = warmup_name if given else share_name
        filler.notes.append(
            f"{filler.shown(name)}: the learning rate still rises when TRAIN_ITERS={filler[_ITERS]} end"
        )


def _nearest(value: int, step: int) -> str:
    """Return the multiples of ``step`` around ``value``, for a message."""
    below = value // step * step
    return f"{below} or {below + step}" if below else str(step)
