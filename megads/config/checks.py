"""Rules that span sections. Each broken rule is one line with the numbers and what would work."""

from __future__ import annotations

import math
from collections.abc import Iterator

from megads.config.derive import data_degree, padded_vocab_size
from megads.config.schema import RunConfig
from megads.errors import ConfigError


def check(run: RunConfig, world_size: int) -> None:
    """Refuse settings that can not be trained together on ``world_size`` ranks.

    Args:
        run: derived (``megads.config.derive``).
        world_size: ranks of the run.

    Raises:
        ConfigError: the first broken rule, one line.
    """
    for rule in (_unsupported, _layout, _shape, _tensor_parallel, _batch, _schedule, _precision, _data, _names):
        for problem in rule(run, world_size):
            raise ConfigError(problem)


def _unsupported(run: RunConfig, world_size: int) -> Iterator[str]:
    grid = run.parallel
    if grid.pipeline > 1:
        yield f"PP={grid.pipeline}: pipeline parallelism is not supported yet; use PP=1 and a larger TP"
    if grid.sequence > 1:
        yield f"SP={grid.sequence}: Ulysses sequence parallelism is not supported yet; use SP=1 and a larger TP"
    if grid.zero_stage > 1:
        yield f"ZERO_STAGE={grid.zero_stage}: ZeRO stages 2 and 3 are not supported yet; use ZERO_STAGE=1"


def _layout(run: RunConfig, world_size: int) -> Iterator[str]:
    data_degree(run, world_size)
    if run.launch.launch_with == "direct" and world_size > 1:
        yield f"LAUNCH_WITH=direct starts one rank, not {world_size}; use LAUNCH_WITH=auto"


def _shape(run: RunConfig, world_size: int) -> Iterator[str]:
    model = run.model
    if model.num_heads % model.num_kv_heads:
        known = _divisors(model.num_heads)
        yield (
            f"HEADS={model.num_heads} can not share NUM_KV_HEAD={model.num_kv_heads} key/value heads equally; "
            f"use NUM_KV_HEAD={_either(known)}"
        )
    if model.position_embedding == "rope" and model.head_dim % 2:
        yield (
            f"HEAD_DIM={model.head_dim} is odd and rotary positions need an even one; "
            f"use another HEADS, HEAD_DIM={model.head_dim + 1}, or POSITION_EMBEDDING=learned"
        )
    if model.position_embedding == "learned" and model.seq_length > model.max_positions:
        yield (
            f"SEQ={model.seq_length} is longer than the table of MAX_POSITIONS={model.max_positions} learned "
            f"positions; use MAX_POSITIONS={model.seq_length}"
        )


def _tensor_parallel(run: RunConfig, world_size: int) -> Iterator[str]:
    model, degree = run.model, run.parallel.tensor
    sizes = {
        "HEADS": model.num_heads,
        "NUM_KV_HEAD": model.num_kv_heads,
        "FFN_HIDDEN_SIZE": model.ffn_hidden_size,
    }
    known = _divisors(math.gcd(*sizes.values()))
    for name, size in sizes.items():
        if size % degree:
            yield f"{name}={size} can not be split over TP={degree} ranks; use TP={_either(known)}"
    vocab = padded_vocab_size(model)
    if vocab % degree:
        multiple = math.lcm(model.vocab_multiple, degree)
        yield (
            f"the vocabulary of {model.vocab_size}, padded to {vocab} (VOCAB_MULTIPLE={model.vocab_multiple}), "
            f"can not be split over TP={degree} ranks; use VOCAB_MULTIPLE={multiple}"
        )


def _batch(run: RunConfig, world_size: int) -> Iterator[str]:
    train = run.train
    data = data_degree(run, world_size)
    product = train.micro_batch * train.grad_acc_steps * data
    if train.global_batch != product:
        yield (
            f"GLOBAL_BATCH={train.global_batch} is not MICRO_BATCH x GRAD_ACC_STEPS x DP = "
            f"{train.micro_batch} x {train.grad_acc_steps} x {data} = {product}; give only one of them"
        )


def _schedule(run: RunConfig, world_size: int) -> Iterator[str]:
    optim = run.optim
    if optim.min_lr > optim.lr:
        yield f"MIN_LR={optim.min_lr:g} is larger than LR={optim.lr:g}; use MIN_LR={optim.lr / 10:g} or a larger LR"
    if optim.lr_warmup_iters and optim.lr_warmup_iters >= optim.lr_decay_iters:
        yield (
            f"LR_WARMUP_ITERS={optim.lr_warmup_iters} takes the whole decay of {optim.lr_decay_iters} steps "
            f"(LR_DECAY_ITERS, else TRAIN_ITERS); use LR_WARMUP_ITERS={max(1, optim.lr_decay_iters // 10)} "
            f"or a longer decay"
        )


def _precision(run: RunConfig, world_size: int) -> Iterator[str]:
    optim, dtype = run.optim, run.train.dtype
    if run.model.attention == "flash" and dtype == "fp32":
        yield "ATTENTION=flash has no DTYPE=fp32; use DTYPE=bf16 or ATTENTION=sdpa"
    if dtype == "fp16" and not optim.loss_scale and 2**optim.initial_loss_scale_power < optim.min_loss_scale:
        yield (
            f"INITIAL_LOSS_SCALE_POWER={optim.initial_loss_scale_power} starts at "
            f"{2**optim.initial_loss_scale_power}, below MIN_LOSS_SCALE={optim.min_loss_scale}; use a larger power"
        )
    if dtype != "fp16" and optim.loss_scale:
        yield f"LOSS_SCALE={optim.loss_scale:g} is for DTYPE=fp16, not {dtype}; leave it unset"


def _data(run: RunConfig, world_size: int) -> Iterator[str]:
    data, train = run.data, run.train
    shares = {"TRAIN_SPLIT": data.train_split, "VAL_SPLIT": data.val_split, "TEST_SPLIT": data.test_split}
    given = ", ".join(f"{name}={share:g}" for name, share in shares.items())
    if not any(shares.values()):
        yield f"{given}: all shares are 0; use for example TRAIN_SPLIT=990 VAL_SPLIT=10"
    if not data.train_split:
        yield f"{given} leaves nothing to train on; use for example TRAIN_SPLIT=990"
    if not data.val_split and train.eval_iters and (train.eval_interval or train.eval_at_start):
        yield (
            f"VAL_SPLIT=0 leaves nothing to validate on (EVAL_ITERS={train.eval_iters}); "
            f"use VAL_SPLIT=10 or EVAL_ITERS=0"
        )
    if data.tokenizer_type == "NullTokenizer" and not data.file_list:
        yield "TOKENIZER_TYPE=NullTokenizer can not read the demo corpus; give DATA_FILE_LIST or leave it unset"


def _names(run: RunConfig, world_size: int) -> Iterator[str]:
    name = run.name
    one_folder = name == name.strip() and name.isprintable() and not {"/", "\\"} & set(name) and name not in (".", "..")
    if not one_folder or len(name) > 200:
        yield f"RUN_NAME={name[:40]!r} is not one folder's name; use letters, digits, '-', '_' and '.', or give RUN_DIR"
    paths = {
        "RUN_DIR": run.dir,
        "CKPT_DIR": run.checkpoint.dir,
        "HOSTFILE": run.launch.hostfile,
        "DATA_FILE_LIST": run.data.file_list,
        "DATA_CACHE_PATH": run.data.cache_dir,
    }
    for setting, value in paths.items():
        if "\0" in value or "\n" in value:
            yield f"{setting}={value!r} is not a path; it holds a line break"
        if value and not value.strip():
            yield f"{setting}={value!r} is blank; give a path, or leave it unset"
        if value.startswith("~") and setting in ("RUN_DIR", "CKPT_DIR", "DATA_FILE_LIST"):
            yield f"{setting}={value}: only a shell knows '~'; give the whole path"
        if len(value) > 4000 or any(len(part.encode("utf8", "replace")) > 255 for part in value.split("/")):
            yield f"{setting}={value[:40]}... is too long for a path; use at most 255 bytes between two '/'"


def _divisors(value: int) -> list[int]:
    # No advice is better with a degree beyond this, and a slip of the finger may be 10**15.
    return [each for each in range(1, min(value, 4096) + 1) if value % each == 0]


def _either(numbers: list[int]) -> str:
    """Return ``1, 2 or 4``."""
    shown = [str(number) for number in numbers[:12]]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"
