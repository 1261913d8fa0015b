"""A tokenizer folder for chats, made in a moment."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

WORDS = "system user assistant You are kind . What is the capital of France ? Paris and Rome ! title source one two"
SPECIAL = (
    *("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
)


@functools.cache
def _trained(special: tuple[str, ...]) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator([WORDS] * 8, trainer)
    return str(made.to_str())


def write_tokenizer(
    folder: Path, template: str | None = None, *, special: tuple[str, ...] = SPECIAL, **config: Any
) -> Path:
    """Write tokenizer.json and tokenizer_config.json, with a chat template or without one; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(_trained(special))
    named = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    about = {**{key: value for key, value in named.items() if value in special or key == "tokenizer_class"}, **config}
    if template is not None:
        about["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder


def tokenizer_of(folder: Path) -> Any:
    """Return our tokenizer of a folder."""
    from megads.data.tokenizers.base import TokenizerSpec
    from megads.data.tokenizers.build import make_tokenizer

    return make_tokenizer(TokenizerSpec("HFTokenizer", str(folder)))
