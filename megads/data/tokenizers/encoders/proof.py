"""Texts on which libraries for tokenizing are known, or likely, to differ.

Found with the versions in ``fastest``: kitoken takes ``'s`` apart behind a run of odd blanks (GPT-2's expression),
composes marks of Unicode 16 otherwise (NFC), drops characters without a name and keeps a final sigma (WordPiece), and
breaks ties of scores otherwise (Unigram); fastokens gives an added token that the vocabulary already has its second id.

A comparison takes a second or two at every start, so its outcome is kept. It depends on the tokenizer's content, the
versions of both libraries, and the sample, which follows from this program and from Python's tables of Unicode; all of
them are in the key. A file that cannot be read, or is of another form, counts as none.
"""

from __future__ import annotations

import hashlib
import json
import platform
import random
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from megads.config.run_folder import write_whole
from megads.data.tokenizers.base import Tokenizer
from megads.data.tokenizers.encoders import libraries
from megads.errors import ConfigError
from megads.storage.reading import read_json

_SEED = 1234
_ORIGINALS = ("tokenizers", "sentencepiece")
_LARGEST = 4096  # bytes of a kept outcome
_PROGRAM = (str(libraries.__file__), __file__)
"""What this program does around a library, and what it compares."""

_BITS = (
    "\r\n|\r|\n|\n\n|\t| |  |   |        |\u3000|\xa0|\u200b|\u200d|\ufeff|\u2028|\u2029|\x85|\x1c|\x1f|\x00|"
    "\x07|\x7f|'s|'S|'ll|'LL|\u2019s|don't|I'M|'\u017f|\u017ft|1|12|123|12345678901234567890|\u0661\u0662\u0663|"
    "\u0967|\xbd|\u2167|\xb2|_|__init__|==|!!!|...|\u2026|\U0001f468\u200d\U0001f469\u200d\U0001f467|"
    "\U0001f44d\U0001f3fd|\U0001f1e9\U0001f1ea|e\u0301|\xe9|a\u0308\u0323|q\u0307\u0323|\u0300|\u1e9e|\xdf|"
    "\u03a3|\u039f\u03a3 |\u039f\u03a3.\u0391|\u0130|\u0131|I|\ufb01|\uff21\uff22|\u4e2d\u6587|"
    "\u65e5\u672c\u8a9e|\u304b\u3099|\u30ab\uff9e|\ud55c\uad6d\uc5b4|\u1112\u1161\u11ab|\u05e9\u05dc\u05d5|"
    "\u0645\u0631\u062d|\u064b|\u0939\u093f\u0928\u094d\u0926\u0940|\u0e44\u0e17\u0e22|\u2581|\u2581\u2581|##ing|"
    "[CLS]|[MASK]|<s>|</s>|<unk>|<0x41>|<|\ue000|\uffff|\ufffd|\U000e0001|\U0010ffff|\u0378|\u1b4c|"
    "\U00016d67|\U000113c2|\U0001611e|xxxxx|abc|Hello| world|The|a|B|\u0410\u0411\u0412|\u0441\u043b\u043e|(|)|[|]|"
    "{|}|>|$|^|`|~|\u20ac|\u2122|\xad|\xaa|http://a.b/c?d=e&f|endoftext|foo_bar|FooBar|x\u0336|\u0e01\u0e33"
)
BITS = (*_BITS.split("|"), "|", "<|endoftext|>")
"""Pieces that are put together at random."""

RUNS = ("x", "1", " ", "\n", "ab", "\u4e2d", "!", "-", "=", "\u0301", "\r\n", "\U0001f600", "a ", "\t ")
"""Pieces that are repeated."""


_ALIKE = (
    range(0x3400, 0xA48D),  # ideographs, Yi
    range(0xAC00, 0xD7A4),  # Hangul
    range(0x12000, 0x14680),  # cuneiform, hieroglyphs, Anatolian
    range(0x16800, 0x16A39),  # Bamum
    range(0x17000, 0x18D09),  # Tangut
    range(0x1B000, 0x1B2FC),  # Nushu
    range(0x20000, 0x33480),  # ideographs
)


def adversarial(tokenizer: Tokenizer) -> list[str]:
    """Return texts to prove a library with: odd characters, long runs, and this vocabulary's own tokens in odd places.

    Deterministic; about half a million characters, which the slowest original encodes in a second.
    """
    rng = random.Random(_SEED)
    own = _own_tokens(tokenizer)
    special = [token for token in own[0] if token][:200]
    texts = ["", *BITS, *_mixed(rng, BITS, 2000), *_runs(), *_sweep()]
    if special:
        texts += [odd for token in special for odd in _odd_places(token)]
        texts += _mixed(rng, (*BITS, *special), 500)
    if own[1]:
        texts += _mixed(rng, [rng.choice(own[1]) for _ in range(4000)], 500)
        texts += _mixed(rng, [f" {rng.choice(own[1])}" for _ in range(4000)], 300)
    return texts


def _mixed(rng: random.Random, bits: Sequence[str], count: int) -> Iterator[str]:
    for _ in range(count):
        yield "".join(rng.choice(bits) for _ in range(rng.randint(1, 25)))


def _runs() -> Iterator[str]:
    for bit in RUNS:
        for length in (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 127, 200, 201, 1000, 3000):
            yield bit * length
            if length < 70:
                yield f"a{bit * length}b"


def _sweep() -> Iterator[str]:
    """Put characters besides letters, digits, blanks and themselves, some in a text.

    Of long rows of characters that are alike, or have no meaning, one in 13 is enough.
    """
    codes = [code for code in (*range(0xD800), *range(0xE000, 0x33480), *range(0xE0000, 0xE0200)) if _counts(code)]
    for first in range(0, len(codes), 32):
        yield "".join(f"a{char}b {char}{char}1" for char in map(chr, codes[first : first + 32]))


def _counts(code: int) -> bool:
    return code % 13 == 0 or not (unicodedata.category(chr(code)) in ("Cn", "Co") or any(code in row for row in _ALIKE))


def _odd_places(token: str) -> Iterator[str]:
    yield from (token, token * 2, f"a{token}b", f" {token} ", f"\n{token}\n", f"1{token}1", f"{token} {token}")
    yield from (
        token[:-1],
        token[1:],
        token.upper(),
        token.lower(),
        f"<{token}>",
        f"{token[0]}{token}",
        f"\xe9{token}e\u0301",
    )


def _own_tokens(tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Return the tokens that are looked for in texts as they are, and the others, as text."""
    inner: Any = getattr(tokenizer, "inner", None)
    if inner is not None:
        added = [token.content for token in inner.get_added_tokens_decoder().values()]
        return added, [_plain(inner, token, number) for token, number in sorted(inner.get_vocab(False).items())]
    processor: Any = getattr(tokenizer, "processor", None)
    if processor is not None:
        size = processor.vocab_size()
        control = [processor.id_to_piece(i) for i in range(size) if processor.is_control(i) or processor.is_unknown(i)]
        pieces = [processor.id_to_piece(i) for i in range(size) if not processor.is_byte(i)]
        return [*getattr(tokenizer, "found", ()), *control], [piece.replace("\u2581", " ") for piece in pieces]
    vocab = getattr(tokenizer, "vocab", {})
    return [token for token in vocab if token[:1] in "[<"], [token.removeprefix("##") for token in vocab]


def _plain(inner: Any, token: str, number: int) -> str:
    """Return what a token of the vocabulary looks like in a text."""
    if inner.decoder is None:
        return token
    return str(inner.decode([number], skip_special_tokens=False)).removeprefix("##").replace("\u2581", " ") or token


@dataclass(frozen=True)
class Outcome:
    """What came out."""

    problem: str  # how the library fails; empty: it gives the same ids
    texts: int
    characters: int


def kept_outcome(folder: Path | None, tokenizer: Tokenizer, library: str) -> Outcome | None:
    """Return the outcome that is kept for a library, by its name with its version; None where there is none."""
    if folder is None:
        return None
    key = _key(tokenizer, library)
    try:
        content = read_json(_path(folder, key), _LARGEST)
        outcome = Outcome(content["problem"], content["texts"], content["characters"])
        right = content["key"] == key and content["check"] == _check(key, outcome)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return outcome if right else None


def keep_outcome(folder: Path | None, tokenizer: Tokenizer, library: str, outcome: Outcome) -> None:
    """Keep an outcome; a folder that takes no file keeps none."""
    if folder is None:
        return
    key = _key(tokenizer, library)
    content = {"key": key, **asdict(outcome), "check": _check(key, outcome)}
    with suppress(OSError, ConfigError):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(_path(folder, key), json.dumps(content) + "\n")


def _path(folder: Path, key: str) -> Path:
    return folder / f"encoder-{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _check(key: str, outcome: Outcome) -> str:
    """Return a checksum: a flipped bit must not make an unproved library a proved one."""
    return hashlib.sha256(f"{key} {outcome}".encode()).hexdigest()


def _key(tokenizer: Tokenizer, library: str) -> str:
    versions = {}
    for name in _ORIGINALS:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    program = hashlib.sha256()
    for path in _PROGRAM:
        program.update(Path(path).read_bytes())
    parts = [tokenizer.fingerprint, library, versions, program.hexdigest(), unicodedata.unidata_version]
    return json.dumps([*parts, platform.machine()])
