"""Settings of ``megads finetune``: the task, its files and how often they are read."""

from __future__ import annotations

from typing import Literal

from megads.config.setting import Section, setting


class FinetuneConfig(Section):
    """What a pretrained model is finetuned on."""

    task: Literal["", "MNLI", "QQP", "RACE", "jsonl", "chat"] = setting(
        "",
        "TASK --task",
        "task of megads finetune: chat, MNLI, QQP, RACE, or jsonl for labelled files of one's own; empty: none",
        synonyms={"mnli": "MNLI", "qqp": "QQP", "race": "RACE", "JSONL": "jsonl", "json": "jsonl", "sft": "chat"},
    )
    train_data: str = setting(
        "",
        "TASK_TRAIN_DATA --train-data",
        "files to finetune on, or folders of RACE; between blanks; of chats also WEIGHT FILE WEIGHT FILE ...",
        words=True,
    )
    valid_data: str = setting(
        "",
        "TASK_VALID_DATA --valid-data",
        "files to score after each epoch, or folders of RACE; between blanks",
        words=True,
    )
    test_data: str = setting(
        "",
        "TASK_TEST_DATA --test-data",
        "files to predict, with or without labels, or folders of RACE; between blanks",
        words=True,
    )
    classes: str = setting(
        "",
        "TASK_CLASSES --class-names",
        "names of the classes of jsonl, in order; empty: the checkpoint's with --epochs 0, else those of the labels",
        words=True,
    )
    choices: int = setting(
        1, "TASK_CHOICES", "texts of every example, each with a choice; megads finetune reads it from the files", ge=1
    )
    chat_template: str = setting(
        "auto",
        "CHAT_TEMPLATE --chat-template",
        "form of chats: plain, instruct-retro, chatml, llama-2, llama-3; auto: the tokenizer folder's, else plain",
    )
    packs: bool = setting(True, "PACK_CHATS --pack-chats", "several chats in one sample, each attending to itself only")
    rows: int = setting(0, "CHAT_ROWS", "samples of the first epoch of chats; megads finetune counts them", ge=0)
    epochs: int = setting(
        3, "TASK_EPOCHS --epochs", "passes over the training files; 0: score the validation files only", ge=0
    )
    keep_last: bool = setting(
        False,
        "TASK_KEEP_LAST --keep-last",
        "train on the last batch of an epoch, though it is not full; else it is dropped",
    )

    @property
    def is_chat(self) -> bool:
        """Whether chats are learnt: a text, and no classes."""
        return self.task == "chat"
