"""Check a layout on a tiny model: what ``megads doctor --gradients`` starts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import IO

from megads.cluster.machine import available_memory
from megads.config.run_folder import CONFIG, save_config
from megads.config.schedule.rates import PARTS, UNITS
from megads.config.schema import RunConfig
from megads.config.sources.resolve import Resolved
from megads.config.stages import virtual_stages
from megads.config.tree import names_of
from megads.doctor.launcher.host_checks import Site
from megads.doctor.launcher.run import plan_ranks, shared_folder
from megads.errors import ConfigError
from megads.launch.launchers.plan import WATCHED
from megads.launch.plan_run import hosts_of_this_job, plan_run
from megads.launch.preflight.capabilities import check_host
from megads.launch.preflight.packages import check_versions, settle_engine
from megads.launch.request import TrainRequest, resolve_request
from megads.launch.schedulers.allocation import Allocation
from megads.launch.supervise.run import run_plan
from megads.plan.memory import estimate
from megads.text.plural import plural
from megads.text.units import size

HEAD_DIM, TOKENS, VOCAB = 8, 8, 64
SIZES_OF_DEEPSPEED = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
    *("fp16.loss_scale", "fp16.initial_scale_power", "fp16.min_loss_scale"),
)


def tiny(run: RunConfig) -> dict[str, str]:
    """Return ``--set`` pairs that shrink a run to the smallest model its layout can be cut into.

    The kind of model and everything about the layout stay; sizes, batches, clipping and
    dropout change. Sizes grow with the degrees, so that every rank has work.
    """
    grid = run.parallel
    heads = 2 * grid.tensor * grid.sequence
    shared = run.model.num_kv_heads and run.model.num_kv_heads < run.model.num_heads
    return {
        "model.num_layers": str(max(2, virtual_stages(run)) * grid.pipeline),
        "model.hidden_size": str(heads * HEAD_DIM),
        "model.num_heads": str(heads),
        "model.num_kv_heads": str(grid.tensor if shared else heads),
        "model.head_dim": str(HEAD_DIM),
        "model.ffn_hidden_size": str(2 * heads * HEAD_DIM),
        "model.seq_length": str(TOKENS * grid.tensor * grid.sequence),
        "model.max_positions": "0",
        "model.vocab_size": str(VOCAB * grid.tensor),
        "model.vocab_multiple": str(VOCAB * grid.tensor),
        "model.hidden_dropout": "0",
        "model.attention_dropout": "0",
        "model.attention": "sdpa",
        "parallel.pipeline_split": "layers",
        "parallel.layers_per_virtual_stage": "0",
        "parallel.virtual_stages": str(virtual_stages(run)),
        "train.micro_batch": "2",
        "train.grad_acc_steps": "4",
        "train.global_batch": "0",
        "train.train_iters": "1",
        "train.eval_iters": "0",
        # Its first moment after a step is the gradient.
        "optim.optimizer": "adamw",
        "optim.clip_grad": "0",
        "optim.lr_decay_style": "constant",
        **{f"optim.lr_{part}_{unit}": "0" for part in PARTS for unit in UNITS if (part, unit) != ("decay", "frac")},
        "optim.lr_constant": "0",
        "optim.weight_decay_incr_style": "linear",
        "lr_finder.enabled": "0",
        "checkpoint.use_args": "0",
        "optim.loss_scale": "0",
        "optim.initial_loss_scale_power": "8",
        "optim.min_loss_scale": "1",
        "recompute.num_layers": "1",
        "data.file_list": "",
        "data.train_split": "990",
        "data.tokenizer_type": "HFTokenizer",
        "data.eod_mask_loss": "0",
        "data.reset_position_ids": "0",
        "data.reset_attention_mask": "0",
    }


def check_gradients(request: TrainRequest, out: IO[str]) -> int:
    """Start the layout that ``request`` describes on a tiny model, compare it with one rank, return the exit code.

    The folder of this check is made in the current one, which every host of a job shares, and
    is removed at the end.

    Returns:
        0: equal. 1: not equal, or a rank failed. 2: a rank refused the settings.

    Raises:
        MegadsError: the layout is impossible, or a package is missing.
    """
    here = hosts_of_this_job(request)
    given = resolve_request(request, here.machine, needs_checkpoint=False).run
    # What a layout is asked to do alone decides nothing here: sizes come from its degrees.
    env = {name: value for name, value in request.env.items() if name not in _sizes()}
    small = {**request.overrides(), **tiny(given)}
    pairs = tuple(f"{name}={value}" for name, value in small.items())
    planned = plan_run(replace(request, env=env, pairs=pairs), here, vocab_size=0, finish=_settled)
    run, allocation = planned.run, planned.allocation
    check_host(run, request.env)
    if run.machine == "cpu":
        _check_memory(run, allocation, available_memory(), request.hostname)
    check_versions(run)
    with shared_folder() as folder:
        save_config(run, planned.resolved.origins, folder / CONFIG)
        words = ["worker", "--config", str(folder / CONFIG), "--gradients"]
        plan = plan_ranks(Site(request, run, planned.facts), allocation, words, folder, {WATCHED: "1"})
        grid = run.parallel
        out.write(
            f"layout     {plural(allocation.world_size, 'rank')}: TP={grid.tensor} PP={grid.pipeline} "
            f"SP={grid.sequence} "
            f"DP={grid.data} ZeRO={grid.zero_stage}, {run.train.dtype}, accumulation {run.train.grad_acc_steps}\n"
        )
        out.flush()
        return run_plan(plan, folder, request.env, saves=False)


def _settled(resolved: Resolved) -> Resolved:
    return settle_engine(_without_sizes(resolved))


def _check_memory(run: RunConfig, allocation: Allocation, available: int, host: str) -> None:
    """Refuse more ranks than the host can hold; the model is tiny already, so only fewer ranks help.

    Raises:
        ConfigError: what the ranks need, and how many of them would fit.
    """
    each = estimate(run, allocation.world_size).total
    ranks = allocation.ranks_per_host
    if run.train.force or each * ranks <= available:
        return
    grid = run.parallel
    raise ConfigError(
        f"{host} has {size(available)} of memory for {plural(ranks, 'rank')} that need {size(each)} each; at most "
        f"{available // each} fit: lower TP={grid.tensor}, PP={grid.pipeline}, SP={grid.sequence} or DP={grid.data}, "
        "or use more hosts"
    )


def _without_sizes(resolved: Resolved) -> Resolved:
    """Return ``resolved`` without what its DeepSpeed JSON says of numbers that :func:`tiny` replaces."""
    run = resolved.run
    config = json.loads(run.deepspeed.config_overrides or "{}")
    for key in SIZES_OF_DEEPSPEED:
        section, _, name = key.rpartition(".")
        (config.get(section, {}) if section else config).pop(name, None)
    deepspeed = run.deepspeed.model_copy(update={"config_overrides": json.dumps(config) if config else ""})
    return replace(resolved, run=run.model_copy(update={"deepspeed": deepspeed}))


def _sizes() -> set[str]:
    """Return the variables that decide what :func:`tiny` replaces."""
    return {name for setting in tiny(RunConfig()) for name in names_of(setting)}
