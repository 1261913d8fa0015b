"""Step 1: texts that a model writes, without a prompt or K times for each prompt of a file.

Text ``i`` is drawn with a seed made of the command's seed and ``i``: it depends neither on the other texts
nor on the ranks, up to the rounding of a batch. A call that is run again does whole blocks again, in the same batches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megads.comm.messages import broadcast_value
from megads.detoxify.output_lines import OutputLines
from megads.errors import ConfigError, MegadsError
from megads.inference.engine import check_prompt
from megads.inference.generate import Prompt, generate, tokens_of
from megads.inference.sampling import Sampling
from megads.inference.session import Session

ROUNDS = 8
"""Texts of a block, per slot of every replica."""
_WEIGHTS = (".safetensors", ".bin", ".pt")


@dataclass(frozen=True)
class Order:
    """What to generate.

    Attributes:
        prompts: texts; empty: every text begins a new document.
        count: texts in all; each prompt is continued ``count / len(prompts)`` times, one after the other.
        sampling: of all of them, with the command's seed.
    """

    prompts: Sequence[str]
    count: int
    sampling: Sampling

    def prompt(self, place: int) -> Prompt:
        """Return the prompt of text ``place``."""
        text = self.prompts[place * len(self.prompts) // self.count] if self.prompts else ""
        return Prompt(text, place, {"seed": seed_of(self.sampling.seed or 0, place)})

    def about(self, session: Session) -> dict[str, Any]:
        """Return what decides the texts."""
        digest = hashlib.blake2b(json.dumps(list(self.prompts)).encode(), digest_size=16).hexdigest()
        return {
            "model": session.path,
            "weights": _stamp(Path(session.path)),
            "tokenizer": session.tokenizer_path,
            "dtype": str(next(session.runner.module.parameters()).dtype),
            "context": session.runner.context,
            "texts": self.count,
            "prompts": digest,
            **asdict(self.sampling),
        }


def _stamp(folder: Path) -> str:
    """Return a digest of the sizes and times of a model's files: others under the same name write other texts."""
    paths = sorted(path for path in folder.glob("*") if path.name == "manifest.json" or path.suffix in _WEIGHTS)
    found = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest()


def seed_of(seed: int, place: int) -> int:
    """Return the seed of text ``place``. Not ``seed + place``: two commands with near seeds would share most texts."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{place}".encode(), digest_size=8).digest(), "little")


def continuations(count: int, prompts: int, wanted: int, default: int) -> int:
    """Return how often each prompt is continued.

    Args:
        count: of ``--num-samples``; 0: not given.
        prompts: how many there are.
        wanted: of ``--continuations``; 0: not given.
        default: without either of them.

    Raises:
        ConfigError: the numbers contradict each other.
    """
    if count and wanted and count != prompts * wanted:
        raise ConfigError(
            f"--num-samples {count}: {prompts} prompts with --continuations {wanted} make {prompts * wanted} texts; "
            "drop one of them"
        )
    if count % prompts:
        raise ConfigError(
            f"--num-samples {count}: is not a multiple of the {prompts} prompts, each of which is continued the same "
            "number of times; use --continuations"
        )
    return wanted or count // prompts or default


def write_texts(
    session: Session,
    order: Order,
    target: Path,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Write the texts of ``order`` to ``target``; return how many of them were there already. All ranks call it.

    A line is ``{"text", "all_text", "prompt", "id"}``.

    Args:
        session: of the model.
        order: the same on every rank.
        target: written by rank 0.
        overwrite: see :class:`OutputLines`.
        progress: called on rank 0 with how many texts are done, and of how many, without those that were there.

    Raises:
        MegadsError: the file cannot be written, or a prompt does not fit.
    """
    _check_prompts(session, order)
    block = ROUNDS * session.runner.num_slots * session.groups.data_size
    lines, found = _opened(session, order, target, block, overwrite)
    try:
        begun, unit, is_complete = found["done"], found["unit"], found["is_complete"]
        for first in range(begun, 0 if is_complete else order.count, unit):
            prompts = [order.prompt(place) for place in range(first, min(order.count, first + unit))]
            start = first - begun

            def show(done: int, total: int, start: int = start) -> None:
                progress(start + done, order.count - begun)

            records = generate(session, prompts, order.sampling, show)
            if lines:
                lines.write({name: each[name] for name in ("text", "all_text", "prompt", "id")} for each in records)
        if lines and not is_complete:
            lines.publish()
    finally:
        if lines:
            lines.close()
    return int(begun)


def _check_prompts(session: Session, order: Order) -> None:
    """Find a prompt that does not fit before hours of others are generated; ConfigError."""
    for number, text in enumerate(order.prompts, start=1):
        try:
            check_prompt(tokens_of(session, text), session.runner, order.sampling.max_tokens)
        except ConfigError as error:
            raise ConfigError(f"prompt {number}: {error}") from None


def _opened(
    session: Session, order: Order, target: Path, block: int, overwrite: bool
) -> tuple[OutputLines | None, dict[str, Any]]:
    """Open the file on rank 0, and tell all ranks what is in it, or what is wrong."""
    lines: OutputLines | None = None
    found: dict[str, Any] = {}
    if session.speaks:
        try:
            lines = OutputLines(target, order.about(session), unit=block, overwrite=overwrite)
            unit = 0 if lines.is_complete else lines.unit
            found = {"done": lines.done, "unit": unit or 1, "is_complete": lines.is_complete}
        except MegadsError as error:
            found = {"error": f"--output {error}"}
    found = broadcast_value(found)
    if "error" in found:
        raise ConfigError(found["error"])
    return lines, found
