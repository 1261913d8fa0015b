"""Step 4: the command lines of ``megads data preprocess`` and ``megads train`` that finetune on the filtered texts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from megads.checkpoint.convert.huggingface.dtypes import SHORT
from megads.checkpoint.format.folders import CheckpointRef, iteration_of
from megads.checkpoint.format.manifest import Manifest
from megads.checkpoint.resume.compatibility import HF
from megads.checkpoint.resume.start_point import source_of
from megads.data.formats.prefix import strip_suffix
from megads.data.tokenizers.base import TokenizerSpec
from megads.errors import DataError
from megads.inference.tokenizer import spec_of_checkpoint
from megads.text.quoting import quoted

SETTINGS = Path(__file__).with_name("sgeat.yaml")
"""Of SGEAT, as a preset: every other way to give a setting overrides it."""
KEY = "text"
_SPLIT = {"data.split", "data.train_split", "data.val_split", "data.test_split"}
_COMPRESSED = (".gz", ".xz", ".zst", ".bz2")
_TEXTS = (".jsonl", ".json")


@dataclass(frozen=True)
class Texts:
    """What is trained on.

    Attributes:
        prefix: of the token files.
        source: JSON lines that they are made of; None: they are given.
        is_made: whether they are there, made after ``source`` was written.
    """

    prefix: Path
    source: Path | None = None
    is_made: bool = True


def texts_of(path: Path) -> Texts:
    """Return what ``path`` names: JSON lines, or the prefix of token files; DataError where it is neither."""
    if path.is_file() and path.suffix not in (".bin", ".idx"):
        stem = str(path)
        for endings in (_COMPRESSED, _TEXTS):
            stem = next((stem.removesuffix(end) for end in endings if stem.endswith(end)), stem)
        prefix = Path(f"{stem}_{KEY}_document")
        index = Path(f"{prefix}.idx")
        is_made = index.is_file() and index.stat().st_mtime_ns >= path.stat().st_mtime_ns
        return Texts(prefix, path, is_made)
    prefix = Path(strip_suffix(str(path)))
    if not Path(f"{prefix}.idx").is_file():
        raise DataError(
            f"{path}: no such file; pass JSON lines of `megads detoxify filter`, or the prefix of token files"
        )
    return Texts(prefix)


def preprocess_words(texts: Texts, tokenizer: TokenizerSpec, workers: int | None) -> list[str]:
    """Return the words of ``megads data preprocess`` for ``texts``."""
    words = ["--input", str(texts.source), "--output-prefix", str(texts.prefix).removesuffix(f"_{KEY}_document")]
    words += ["--append-eod", *(["--workers", str(workers)] if workers else [])]
    words += ["--overwrite"] if Path(f"{texts.prefix}.idx").exists() else []
    return [*words, *tokenizer_words(tokenizer)]


def tokenizer_words(tokenizer: TokenizerSpec) -> list[str]:
    """Return the options that name a tokenizer."""
    named = {
        "--tokenizer-type": tokenizer.type,
        "--tokenizer-model": tokenizer.model,
        "--vocab-file": tokenizer.vocab_file,
        "--merge-file": tokenizer.merge_file,
    }
    return [word for option, value in named.items() if value for word in (option, value)]


@dataclass(frozen=True)
class Start:
    """The model that is finetuned.

    Attributes:
        load: what LOAD becomes.
        checkpoint: that it means.
        named: what the user calls it.
    """

    load: Path
    checkpoint: CheckpointRef
    named: Path

    @classmethod
    def of(cls, load: Path, named: Path) -> Start:
        """Return the start at a run, a folder of checkpoints or a checkpoint; CheckpointError without one."""
        return cls(load, source_of(load), named)

    @property
    def manifest(self) -> Manifest:
        """What the checkpoint says about itself."""
        return self.checkpoint.manifest

    @property
    def tokenizer(self) -> TokenizerSpec:
        """The tokenizer of its training; CheckpointError where it names none."""
        return spec_of_checkpoint(self.checkpoint.path, self.manifest, "pass one with --tokenizer-model")

    @property
    def name(self) -> str:
        """The name of the run that starts there."""
        parts = list(self.named.parts[1:])
        while parts and (iteration_of(Path(parts[-1])) >= 0 or parts[-1] in ("checkpoints", "release")):
            parts.pop()
        return f"{parts[-1]}-detoxified"[:100] if parts else "detoxified"

    def settings(self) -> dict[str, str]:
        """Return what training continues with unless the user says otherwise: length of samples, dropout, precision."""
        about, before = self.manifest.about, self.manifest.settings
        model = before.get("model") or about.get(HF, {}).get("settings", {})
        found = {f"model.{name}": model.get(name) for name in ("seq_length", "hidden_dropout", "attention_dropout")}
        found["model.seq_length"] = found["model.seq_length"] or about.get("max_seq_length")
        # Without a dtype the default of devices would be taken: for a folder of another program, that of its files.
        found["train.dtype"] = before.get("train", {}).get("dtype") or SHORT.get(about.get("torch_dtype", ""))
        return {name: str(value) for name, value in found.items() if value}


def train_words(
    texts: Texts,
    start: Start,
    *,
    tokenizer: TokenizerSpec | None,
    valid: Sequence[str],
    given: Collection[str],
    own: Sequence[str],
) -> list[str]:
    """Return the words of ``megads train``.

    Args:
        texts: to train on, all of them.
        start: the model.
        tokenizer: of the model, to be named; None: the user names one.
        valid: token files to validate on, in the form of ``--data-path2``; empty: there is no validation.
        given: settings that the user has given, ``name`` among them if the run has a name.
        own: further words of the user.
    """
    words = ["--preset", str(SETTINGS), "--load", str(start.load), "--data-path", quoted(str(texts.prefix))]
    words += [] if _SPLIT & set(given) else ["--split", "100,0,0"]
    words += ["--valid-data-path", *valid] if valid else []
    for name in () if valid else ("train.eval_interval", "train.eval_iters"):
        words += [] if name in given else ["--set", f"{name}=0"]
    words += tokenizer_words(tokenizer) if tokenizer else []
    if "name" not in given:
        words += ["--set", f"name={start.name}"]
    for name, value in start.settings().items():
        words += [] if name in given else ["--set", f"{name}={value}"]
    return [*words, *own]
