"""The samples of a run, on one rank: those of its data, or of its task."""

from __future__ import annotations

from typing import Any

from megads.comm.groups import Groups
from megads.comm.messages import all_gather_values, broadcast_value, first_text
from megads.config.schema import RunConfig
from megads.data.chat.samples import build_chats, read_chats
from megads.data.datasets import build_splits, data_fingerprint, read_shards, uses_demo
from megads.data.samples.index_cache.build import Team
from megads.data.samples.retro.queried import neighbors_fingerprint
from megads.data.sources.demo import make_demo
from megads.data.stages.samples import build_stages
from megads.data.tasks.samples import build_task
from megads.data.tasks.task import read_task
from megads.data.tokenizers.build import load_tokenizer, uses_demo_tokenizer


def task_splits(run: RunConfig) -> tuple[dict[str, Any], str]:
    """Return the samples of a task by split, and what differs when its files do.

    Raises:
        MegadsError: a file is missing or broken, or the tokenizer is.
    """
    if uses_demo_tokenizer(run):
        make_demo(run, lambda what, done, total: None)
    if run.finetune.is_chat:
        chats = read_chats(run)
        made = build_chats(run, chats)
        return {"train": made.train, "valid": made.valid, "test": None}, chats.fingerprint(packs=run.finetune.packs)
    task = read_task(run.finetune)
    found = build_task(run, task, load_tokenizer(run))
    return {"train": found.train, "valid": found.valid, "test": found.test}, task.fingerprint()


def read_splits(run: RunConfig, team: Team) -> tuple[dict[str, Any], str]:
    """Return the samples of every split, and what differs when a weight or a file does. Collective."""
    if run.data.stage_table:
        return build_stages(run, team)
    # Ranks find the demo corpus ready, unless another host made it: then this one makes its own.
    shards = make_demo(run, lambda what, done, total: None) if uses_demo(run) else read_shards(run)
    splits = build_splits(run, shards, team)
    assert splits["train"] is not None
    return dict(splits), data_fingerprint(shards, splits["train"].plan.files()) + neighbors_fingerprint(run)


def index_team(groups: Groups) -> Team:
    """Return the ranks of ``groups`` as the team that builds sample indices."""
    size = groups.grid.world_size
    if size == 1:
        return Team()
    local_rank = 0 if groups.is_first_on_host else 1
    return Team(groups.rank, size, local_rank, share=broadcast_value, gather=all_gather_values, first=first_text)
