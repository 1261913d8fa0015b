"""Rules of a run that learns chats."""

from __future__ import annotations

from collections.abc import Iterator

from megads.config.rules.advice import Change, Problem
from megads.config.schema import RunConfig
from megads.families.table import FAMILIES


def _chat(run: RunConfig, world_size: int) -> Iterator[Problem]:
    given = run.finetune
    if not given.is_chat:
        return
    if FAMILIES[run.model.family].samples not in ("causal", "retro"):
        text = f"TASK=chat: a model of MODEL_FAMILY={run.model.family} does not predict a text from its beginning"
        yield Problem(text, [{"model.family": "gpt"}, {"model.family": "llama"}])
    if not given.rows:
        yield Problem("TASK=chat is read by megads finetune only", [{"finetune.task": ""}])
    if given.test_data:
        text = f"TASK_TEST_DATA={given.test_data}: chats are scored by --valid-data, and answered by megads generate"
        yield Problem(text, [{"finetune.test_data": ""}], overridable=("finetune.test_data",))
    if given.classes:
        yield Problem(f"TASK_CLASSES={given.classes}: TASK=chat has no classes", [{"finetune.classes": ""}])
    if run.data.eod_mask_loss:
        text = "EOD_MASK_LOSS=1: of chats only answers count, with what ends them"
        yield Problem(text, [{"data.eod_mask_loss": False}])
    if run.data.reset_attention_mask != given.packs or run.data.reset_position_ids != given.packs:
        text = "RESET_ATTENTION_MASK and RESET_POSITION_IDS follow from PACK_CHATS; leave them unset"
        fitting: Change = {"data.reset_attention_mask": given.packs, "data.reset_position_ids": given.packs}
        yield Problem(text, [fitting])


RULES = (_chat,)
