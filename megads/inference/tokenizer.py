"""The tokenizer of a checkpoint, or the one that the user names instead. No torch."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from megads.checkpoint.convert.huggingface.import_ import TOKENIZER, tokenizer_type
from megads.checkpoint.format.manifest import Manifest
from megads.config.schema import RunConfig
from megads.data.tokenizers.base import Tokenizer, TokenizerSpec
from megads.data.tokenizers.build import spec_of
from megads.data.tokenizers.types.bert import WordPieceTokenizer
from megads.errors import CheckpointError, ConfigError, DataError


def spec_given(path: str) -> TokenizerSpec:
    """Return the description of a tokenizer that the user names by its file or folder.

    Raises:
        DataError: there is no tokenizer.
    """
    place = Path(os.path.abspath(os.path.expanduser(path)))
    if place.is_dir() and (kind := tokenizer_type(place)):
        return TokenizerSpec(kind, str(place))
    if place.suffix in (".json", ".model") and place.is_file():
        return TokenizerSpec("HFTokenizer" if place.suffix == ".json" else "Llama2Tokenizer", str(place))
    raise DataError(
        f"--tokenizer {path}: pass a tokenizer.json, a .model of sentencepiece, or a folder with either or with "
        "vocab.json and merges.txt"
    )


def name_of(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of one token; of a special token of sentencepiece, which has none, its name."""
    processor = getattr(tokenizer, "processor", None)
    return tokenizer.decode([token]) or (str(processor.id_to_piece(token)) if processor else "")


def special_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the tokens that are no text, with their names."""
    named = tokenizer.specials
    places = (named.bos, named.eos, named.cls, named.sep, named.pad, named.mask, *named.extra)
    found = {each for each in places if each is not None}
    inner = getattr(tokenizer, "inner", None)
    added = inner.get_added_tokens_decoder() if inner is not None else {}
    found |= {token for token, about in added.items() if about.special}
    return {token: name_of(tokenizer, token) for token in sorted(found)}


def encode_named(tokenizer: Tokenizer, text: str, named: Mapping[str, int]) -> list[int]:
    """Return the tokens of a text in which the names ``named`` stand for their tokens, also where they are no words."""
    if not (named and isinstance(tokenizer, WordPieceTokenizer)):
        return tokenizer.encode(text)
    parts = re.split("(" + "|".join(map(re.escape, named)) + ")", text)
    return [token for part in parts for token in ([named[part]] if part in named else tokenizer.encode(part))]


def sentinels_of(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the tokens that stand for spans that are cut out of a text, by name."""
    return {f"<extra_id_{number}>": token for number, token in enumerate(tokenizer.specials.extra)}


def with_sentinels(tokenizer: Tokenizer, text: str) -> str:
    """Return a text for the encoder of a T5, with sentinels for its masks, such as ``[MASK]``, if it has no sentinel.

    Raises:
        ConfigError: it has more masks than there are sentinels.
    """
    mask, names = tokenizer.specials.mask, list(sentinels_of(tokenizer))
    if mask is None or not names or any(name in text for name in names):
        return text
    name = name_of(tokenizer, mask).strip()
    first, *parts = text.split(name)
    if len(parts) > len(names):
        raise ConfigError(f"the prompt has {len(parts)} {name}, and the tokenizer {len(names)} tokens <extra_id_N>")
    return first + "".join(name + part for name, part in zip(names, parts, strict=False))


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a text for the encoder of a T5; ConfigError as :func:`with_sentinels`."""
    return encode_named(tokenizer, with_sentinels(tokenizer, text), sentinels_of(tokenizer))


def filled(tokenizer: Tokenizer, text: str, output: Sequence[int], ends: Collection[int]) -> str | None:
    """Return a text with the spans in place of its sentinels that a T5 has written behind them; None without any."""
    text, sentinels = with_sentinels(tokenizer, text), sentinels_of(tokenizer)
    if not any(name in text for name in sentinels):
        return None
    spans: dict[int, list[int]] = {}
    span: list[int] = []
    for token in output:
        if token in sentinels.values():
            span = []
            spans.setdefault(token, span)  # of one that is written again the first span counts
        elif token not in ends:
            span.append(token)
    for name, token in sentinels.items():
        if token in spans:
            text = text.replace(name, tokenizer.decode(spans[token]).strip())
    return text


def spec_of_checkpoint(path: Path, manifest: Manifest, cure: str = "pass one with --tokenizer") -> TokenizerSpec:
    """Return the description of the tokenizer that a checkpoint was trained or imported with.

    Raises:
        CheckpointError: it names none; ``cure`` is what helps.
    """
    about = manifest.about
    if "tokenizer_type" in about:
        named = about.get("tokenizer_model", "")
        # Next to the checkpoint, should the folder have been moved.
        model = str(path.parent / TOKENIZER) if named and not Path(named).exists() else named
        files = (about.get("vocab_file", ""), about.get("merge_file", ""))
        return TokenizerSpec(about["tokenizer_type"], model, *files, manifest.model["vocab_size"])
    if not manifest.settings:
        raise CheckpointError(f"{path}: names no tokenizer; {cure}")
    try:
        return spec_of(RunConfig.model_validate(manifest.settings))
    except ValidationError as error:
        name = ".".join(map(str, error.errors()[0]["loc"]))
        raise CheckpointError(f"{path}: its setting {name} is from another version; {cure}") from None
