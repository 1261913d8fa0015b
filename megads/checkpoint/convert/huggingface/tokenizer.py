"""The tokenizer of a Hugging Face folder: which TOKENIZER_TYPE reads it, and which files are kept. No torch."""

from __future__ import annotations

import shutil
from pathlib import Path

from megads.checkpoint.convert.huggingface.lfs_pointers import refuse_pointer
from megads.errors import CheckpointError
from megads.storage.tokenizer_files import wrong_kind

FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json"),
)
"""What transformers reads a tokenizer from."""


def tokenizer_type(folder: Path) -> str:
    """Return the TOKENIZER_TYPE that reads the files of ``folder``, empty where there is no tokenizer."""
    if (folder / "tokenizer.json").is_file():
        return "HFTokenizer"
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return "GPT2BPETokenizer"
    if (folder / "tokenizer.model").is_file():
        return "Llama2Tokenizer"
    return ""


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the files of a tokenizer to a new folder.

    Raises:
        CheckpointError: one cannot be read or written, is a pointer of Git LFS, or is of another kind than its name.
    """
    try:
        target.mkdir()
        for name in FILES:
            if (source / name).is_file():
                refuse_pointer(source / name)
                if problem := wrong_kind(source / name):
                    raise CheckpointError(f"{source / name}: {problem}; remove it, or fetch the tokenizer again")
                shutil.copyfile(source / name, target / name)
    except OSError as error:
        raise CheckpointError(f"{error.filename or target}: {error.strerror}") from None
