"""What ``megads finetune --task chat`` adds to a request: how samples are packed, their number, a learning rate."""

from __future__ import annotations

from megads.config.schema import RunConfig
from megads.config.sources.resolve import Resolved
from megads.data.chat.blend import parse_files
from megads.data.chat.samples import make_epochs, read_chats
from megads.data.sources.demo import make_demo
from megads.data.tokenizers.build import uses_demo_tokenizer
from megads.errors import ConfigError

GIVEN = ("config", "env", "cli")
"""Layers of settings that are the user's."""

RATE, ADAPTER_RATE = 2e-5, 2e-4
"""Learning rates of a pretrained model whose user names none: of all its weights, and of its adapters alone."""


def check_files(run: RunConfig) -> None:
    """Refuse a run that names nothing to learn or to score.

    Raises:
        ConfigError: it does not, or its weights are none.
    """
    given = run.finetune
    train = parse_files(given.train_data, "TASK_TRAIN_DATA")
    valid = parse_files(given.valid_data, "TASK_VALID_DATA")
    if not train and given.epochs:
        raise ConfigError("TASK=chat has no files to train on; pass --train-data FILE, or --epochs 0")
    if not given.epochs and not valid:
        raise ConfigError("TASK=chat has no files to score; pass --valid-data FILE")


def chat_pairs(asked: Resolved, run: RunConfig, *, has_length: bool) -> list[str]:
    """Return the pairs of ``--set`` that follow from the files and the batch of a derived ``run``.

    Raises:
        MegadsError: the files, the tokenizer or the chat template cannot be used.
    """
    packs, origins = run.finetune.packs, asked.origins
    if uses_demo_tokenizer(run):
        make_demo(run, lambda what, done, total: None)
    data = read_chats(run)
    pairs = [f"finetune.rows={sum(len(file) for file in data.train or data.valid)}"]
    for name in ("data.reset_attention_mask", "data.reset_position_ids"):
        if origins[name].layer not in GIVEN:
            pairs.append(f"{name}={str(packs).lower()}")
    if run.checkpoint.load and origins["optim.lr"].layer not in GIVEN:
        pairs.append(f"optim.lr={ADAPTER_RATE if run.model.lora_rank else RATE}")
    if not run.finetune.epochs:
        return pairs
    if not has_length:
        steps = make_epochs(run, data).steps_until(run.finetune.epochs)
        pairs.append(f"train.train_iters={steps}")
    if data.valid and origins["checkpoint.save_interval"].layer not in GIVEN:
        pairs.append("checkpoint.save_interval=0")
    return pairs
