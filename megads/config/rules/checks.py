"""Rules that span sections. Each broken rule is one line with the numbers and what would work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import gcd

from megads.config.rules import (
    allowed_changes,
    chat,
    data_stages,
    encoder,
    encoder_decoder,
    engine,
    layout,
    lora,
    optimizer,
    pipeline,
    retro,
    stability,
    tasks,
)
from megads.config.rules import schedule as schedule_rules
from megads.config.rules.advice import Attempt, Change, Problem, Refused, divisors, each_of, nearest, refusal
from megads.config.schedule.batches import BatchSchedule, SkipRanges
from megads.config.schema import RunConfig
from megads.config.settings.profile import profiled_ranks, profiled_steps
from megads.config.sizes import data_degree
from megads.families.table import FAMILIES

SHORTEST_MASKED = 8
"""Tokens of a sample of BERT or T5, of which three are special."""

Rule = Callable[[RunConfig, int], Iterator[Problem]]


def check(run: RunConfig, world_size: int, attempt: Attempt) -> None:
    """Refuse settings that cannot be trained together on ``world_size`` ranks.

    Args:
        attempt: tries a change from where the user stands (``megads.config.derive.attempts``).

    Raises:
        Refused: the first broken rule, one line with changes that would work.
    """
    problem = problem_of(run, world_size)
    if problem is not None:
        raise Refused(refusal(problem, attempt), problem)


def problem_of(run: RunConfig, world_size: int) -> Problem | None:
    """Return the first rule that a derived ``run`` breaks."""
    data_degree(run, world_size)
    rules: tuple[Rule, ...] = (
        _shape,
        *encoder.RULES,
        *encoder_decoder.RULES,
        *retro.RULES,
        *chat.RULES,
        *pipeline.RULES,
        *layout.RULES,
        *lora.RULES,
        *engine.RULES,
        _batch,
        _ramp,
        _skips,
    )
    of_training = (*optimizer.RULES, *schedule_rules.RULES, *stability.RULES, *tasks.RULES, *allowed_changes.RULES)
    for rule in (*rules, *of_training, _precision, _data, _names, _profile, _task):
        for problem in rule(run, world_size):
            return replace(problem, rule=rule.__name__)
    return next(data_stages.stages(run, world_size, problem_of), None)


def _shape(run: RunConfig, world_size: int) -> Iterator[Problem]:
    model = run.model
    if FAMILIES[model.family].samples != "t5" and (model.decoder_layers or model.decoder_seq_length):
        yield Problem(
            f"DECODER_LAYERS={model.decoder_layers} and DECODER_SEQ={model.decoder_seq_length} are for t5, and "
            f"MODEL_FAMILY={model.family} has one stack of layers",
            [{"model.decoder_layers": 0, "model.decoder_seq_length": 0}, {"model.family": "t5"}],
            overridable=("model.decoder_layers", "model.decoder_seq_length"),
        )
    if FAMILIES[model.family].reads_sentences and model.seq_length < SHORTEST_MASKED:
        yield Problem(
            f"SEQ={model.seq_length} leaves no text between the special tokens, MODEL_FAMILY={model.family}",
            [{"model.seq_length": SHORTEST_MASKED}],
            f"SEQ={SHORTEST_MASKED} or more",
        )
    if model.num_heads % model.num_kv_heads:
        yield Problem(
            f"HEADS={model.num_heads} cannot share NUM_KV_HEAD={model.num_kv_heads} key/value heads equally",
            each_of("model.num_kv_heads", nearest(model.num_kv_heads, divisors(model.num_heads))),
            overridable=("model.num_kv_heads",),
        )
    if model.position_embedding == "rope" and model.head_dim % 2:
        yield Problem(
            f"HEAD_DIM={model.head_dim} is odd and rotary positions need an even one",
            [{"model.head_dim": model.head_dim + 1}, {"model.position_embedding": "learned"}],
        )
    longest = max(model.seq_length, model.decoder_seq_length)
    if model.position_embedding == "learned" and longest > model.max_positions:
        name, setting = (
            ("SEQ", "model.seq_length") if longest == model.seq_length else ("DECODER_SEQ", "model.decoder_seq_length")
        )
        yield Problem(
            f"{name}={longest} is longer than the table of MAX_POSITIONS={model.max_positions} learned positions",
            [{"model.max_positions": longest}, {setting: model.max_positions}],
            overridable=("model.max_positions",),
        )


def _batch(run: RunConfig, world_size: int) -> Iterator[Problem]:
    train = run.train
    data = data_degree(run, world_size)
    product = train.micro_batch * train.grad_acc_steps * data
    if train.global_batch != product:
        yield Problem(
            f"GLOBAL_BATCH={train.global_batch} is not MICRO_BATCH x GRAD_ACC_STEPS x DP = "
            f"{train.micro_batch} x {train.grad_acc_steps} x {data} = {product}",
            [{"train.global_batch": product}],
        )


def _ramp(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Every batch on the way must be whole micro-batches on every rank: found now, not after a week."""
    train, data = run.train, data_degree(run, world_size)
    schedule, rows = BatchSchedule.of(run), train.micro_batch * data
    if not schedule.is_ramp or (schedule.start % rows == 0 and schedule.increment % rows == 0):
        return
    wrong = next(size for size in schedule.sizes if size % rows)
    share = gcd(schedule.start, schedule.increment)
    smaller = [each for each in divisors(share) if each < train.micro_batch and share % (each * data) == 0]
    yield Problem(
        f"RAMPUP_BATCH_SIZE={train.rampup_batch_size!r}: the batch size {wrong} of the ramp is not a multiple of "
        f"MICRO_BATCH x DP = {train.micro_batch} x {data} = {rows}",
        [
            *each_of("train.micro_batch", reversed(smaller)),
            {"train.rampup_batch_size": f"{rows},{rows},{schedule.ramp_samples}"},
        ],
    )


def _skips(run: RunConfig, world_size: int) -> Iterator[Problem]:
    train, skips = run.train, SkipRanges.parse(run.train.skip_iterations)
    if skips.ranges and skips.count_until(train.train_iters) == train.train_iters:
        yield Problem(
            f"SKIP_TRAIN_ITERATION_RANGE={train.skip_iterations!r} skips all "
            f"of TRAIN_ITERS={train.train_iters} iterations",
            [{"train.skip_iterations": ""}],
            "leave some to train on",
        )


def _precision(run: RunConfig, world_size: int) -> Iterator[Problem]:
    optim, dtype = run.optim, run.train.dtype
    if run.model.attention == "flash" and dtype == "fp32":
        ways = [{"train.dtype": "bf16"}, {"model.attention": "sdpa"}]
        yield Problem("ATTENTION=flash has no DTYPE=fp32", ways, overridable=("model.attention",))
    if dtype == "fp16" and not optim.loss_scale and 2**optim.initial_loss_scale_power < optim.min_loss_scale:
        power = (optim.min_loss_scale - 1).bit_length()
        yield Problem(
            f"INITIAL_LOSS_SCALE_POWER={optim.initial_loss_scale_power} starts at "
            f"{2**optim.initial_loss_scale_power}, below MIN_LOSS_SCALE={optim.min_loss_scale}",
            [*each_of("optim.initial_loss_scale_power", [power] if power <= 32 else []), {"optim.min_loss_scale": 1}],
            overridable=("optim.initial_loss_scale_power", "optim.min_loss_scale"),
        )
    if dtype != "fp16" and optim.loss_scale:
        text = f"LOSS_SCALE={optim.loss_scale:g} is for DTYPE=fp16, not {dtype}"
        yield Problem(text, [{"optim.loss_scale": 0.0}], overridable=("optim.loss_scale",))


def _data(run: RunConfig, world_size: int) -> Iterator[Problem]:
    data, train = run.data, run.train
    each = {"TRAIN_SPLIT": data.train_split, "VAL_SPLIT": data.val_split, "TEST_SPLIT": data.test_split}
    given = f"SPLIT={data.split}" if data.split else ", ".join(f"{name}={share:g}" for name, share in each.items())
    shares = data.shares()
    if not any(shares):
        yield Problem(f"{given}: all shares are 0", [{"data.train_split": 990.0, "data.val_split": 10.0}])
    if not shares[0]:
        fitting: Change = {"data.split": "990,10,0"} if data.split else {"data.train_split": 990.0}
        yield Problem(f"{given} leaves nothing to train on", [fitting])
    is_validated = train.eval_iters and (train.eval_interval or train.eval_at_start or train.evaluate_only)
    if is_validated and not shares[1] and not data.held_out("valid").text:
        text = f"{given if data.split else 'VAL_SPLIT=0'} leaves nothing to validate on (EVAL_ITERS={train.eval_iters})"
        fitting = {"data.split": "990,10,0"} if data.split else {"data.val_split": 10.0}
        yield Problem(text, [fitting, {"train.eval_iters": 0}], overridable=("train.eval_iters",))
    has_files = data.file_list or data.path or run.finetune.task
    if data.tokenizer_type == "NullTokenizer" and not has_files:
        text = "TOKENIZER_TYPE=NullTokenizer cannot read the demo corpus"
        yield Problem(text, otherwise="set DATA_FILE_LIST or leave it unset")
    asked = {
        "EOD_MASK_LOSS": data.eod_mask_loss,
        "RESET_POSITION_IDS": data.reset_position_ids,
        "RESET_ATTENTION_MASK": data.reset_attention_mask,
    }
    needs_end = " ".join(f"{name}=1" for name, is_on in asked.items() if is_on)
    if needs_end and FAMILIES[run.model.family].reads_sentences:
        text = f"{needs_end} is for samples of whole documents, and MODEL_FAMILY={run.model.family} reads sentences"
        yield Problem(text, [{f"data.{name.lower()}": False for name, is_on in asked.items() if is_on}])
    if needs_end and data.tokenizer_type.startswith("BertWordPiece"):
        text = f"{needs_end}: a TOKENIZER_TYPE={data.tokenizer_type} has no end-of-document token"
        yield Problem(text, otherwise="use another tokenizer, or leave it unset")


def _profile(run: RunConfig, world_size: int) -> Iterator[Problem]:
    profiled_steps(run.profile)
    profiled_ranks(run.profile, world_size)
    yield from ()


def _task(run: RunConfig, world_size: int) -> Iterator[Problem]:
    if run.finetune.task and not run.finetune.is_chat and not run.model.num_classes:
        yield Problem(f"TASK={run.finetune.task} is read by megads finetune only", [{"finetune.task": ""}])
    is_retro = FAMILIES[run.model.family].samples == "retro" and not run.finetune.is_chat
    if run.finetune.task and (FAMILIES[run.model.family].samples == "t5" or is_retro):
        text = f"TASK={run.finetune.task}: a model of MODEL_FAMILY={run.model.family} has no head that scores texts"
        yield Problem(text, [{"model.family": "bert"}, {"model.family": "gpt"}])
    if run.model.num_classes and run.finetune.task in ("", "chat"):
        yield Problem(
            f"NUM_CLASSES={run.model.num_classes} is the head of a task with classes, and none is named",
            [{"model.num_classes": 0}],
            "use megads finetune --task",
        )


def _names(run: RunConfig, world_size: int) -> Iterator[Problem]:
    yield from map(Problem, _wrong_names(run))


def _wrong_names(run: RunConfig) -> Iterator[str]:
    name = run.name
    one_folder = name == name.strip() and name.isprintable() and not {"/", "\\"} & set(name) and name not in (".", "..")
    if not one_folder or len(name) > 200:
        yield f"RUN_NAME={name[:40]!r} is not one folder's name; use letters, digits, '-', '_' and '.', or set RUN_DIR"
    paths = {
        "RUN_DIR": run.dir,
        "CKPT_DIR": run.checkpoint.dir,
        "HOSTFILE": run.launch.hostfile,
        "DATA_FILE_LIST": run.data.file_list,
        "DATA_CACHE_PATH": run.data.cache_dir,
        "NVME_PATH": run.deepspeed.nvme_path,
    }
    for setting, value in paths.items():
        if "\0" in value or "\n" in value:
            yield f"{setting}={value!r} is not a path; it holds a line break"
        if value and not value.strip():
            yield f"{setting}={value!r} is blank; set a path, or leave it unset"
        if value.startswith("~") and setting in ("RUN_DIR", "CKPT_DIR", "DATA_FILE_LIST"):
            yield f"{setting}={value}: '~' is expanded by a shell only; set the full path"
        if len(value) > 4000 or any(len(part.encode("utf8", "replace")) > 255 for part in value.split("/")):
            yield f"{setting}={value[:40]}... is too long for a path; use at most 255 bytes between two '/'"
