"""What another program pretrained, imported once into a cache, for a run that starts from it by name.

Torch only for Megatron's files and pytorch_model.bin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from megads.checkpoint.convert.huggingface.import_ import import_folder
from megads.checkpoint.format.folders import checkpoint_name
from megads.checkpoint.resume.start_point import is_hf_folder, is_megatron_folder
from megads.errors import CheckpointError

FOLDER = "pretrained"
"""In the cache."""


def is_of_others(folder: Path) -> bool:
    """Return whether ``folder`` holds a model of Hugging Face or a checkpoint of Megatron; only names are read.

    Not where it cannot be read: who looks for a checkpoint of megads there says what is wrong.
    """
    try:
        return is_hf_folder(folder) or is_megatron_folder(folder)
    except (OSError, CheckpointError):
        return False


def import_once(
    folder: Path,
    cache: Path,
    vocab_multiple: int,
    stated: Mapping[str, Any],
    report: Callable[[str], None] = lambda line: None,
) -> Path:
    """Return the folder of a checkpoint that is made of ``folder``; one that was made of the same files is used again.

    Args:
        folder: of Hugging Face or of Megatron, see :func:`is_of_others`.
        cache: the folder that keeps what is made.
        vocab_multiple: what the vocabulary of a Hugging Face model is padded to.
        stated: settings of the model for files of Megatron that do not hold them.
        report: takes a line for each thing that a user should know.

    Raises:
        CheckpointError: it is incomplete, damaged, or of a model that megads does not have.
    """
    is_hf = is_hf_folder(folder)
    asked = repr((str(folder), vocab_multiple if is_hf else sorted(stated.items()), sorted(_stamps(folder))))
    name = folder.name if folder.name != "release" else folder.parent.name
    final = cache / FOLDER / f"{name}-{hashlib.blake2b(asked.encode(), digest_size=6).hexdigest()}"
    if (final / checkpoint_name(0)).exists():
        return final
    if is_hf:
        notes = [f"{folder}: {note}" for note in import_folder(folder, final, vocab_multiple=vocab_multiple).notes]
    else:
        notes = list(_import_megatron(folder, final, stated))
    for note in notes:
        report(note)
    report(f"{folder}: imported as {final}")
    return final


def _import_megatron(folder: Path, final: Path, stated: Mapping[str, Any]) -> tuple[str, ...]:
    from megads.checkpoint.convert.megatron.import_ import import_megatron

    try:
        return import_megatron(folder, final).notes
    except CheckpointError as error:
        # Only what the files lack is taken from the settings, which may be of another model.
        if "; state " not in str(error) or not stated:
            raise
    return import_megatron(folder, final, stated).notes


def _stamps(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and time of every file."""
    for path in folder.rglob("*"):
        if path.is_file():
            found = path.stat()
            yield str(path.relative_to(folder)), found.st_size, found.st_mtime_ns
