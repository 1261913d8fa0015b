"""A ``tokenizer.json`` with the ids of BertWordPieceLowerCase and BertWordPieceCase.

The normalizer of the tokenizers library that is made for BERT composes marks, drops characters that the running Python
does not know, and cuts at 100 characters a word. So the passes of :mod:`megads.data.tokenizers.types.bert` are put
together from simpler parts, with tables of this Python's characters.
"""

from __future__ import annotations

import functools
import json
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from megads.data.tokenizers.types.bert import IDEOGRAPHS, LONGEST_WORD, WordPieceTokenizer, is_punctuation
from megads.errors import DataError

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_MOST_MARKS = 4
"""Marks between a letter and a sigma that it precedes in a word."""


def save(tokenizer: WordPieceTokenizer, folder: Path) -> dict[str, Any]:
    """Write ``tokenizer.json`` and ``vocab.txt``; return what tokenizer_config.json says of them.

    Raises:
        DataError: the vocabulary leaves out an id, which a vocab.txt cannot.
    """
    tokens = sorted(tokenizer.vocab, key=tokenizer.vocab.__getitem__)
    if [tokenizer.vocab[token] for token in tokens] != list(range(len(tokens))):
        path = tokenizer.spec.vocab_file or tokenizer.spec.model
        raise DataError(f"{path}: has a token twice, or an empty line, and transformers would number it otherwise")
    convert(tokenizer).save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf8")
    names = {f"{name[1:-1].lower()}_token": name for name in _SPECIAL}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return {**names, "do_lower_case": tokenizer.lower_case, "model_input_names": inputs}


def convert(tokenizer: WordPieceTokenizer) -> Any:
    """Return a ``tokenizers.Tokenizer``, which also finds the special tokens in a text, and puts [CLS] and [SEP]."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    vocab = dict(tokenizer.vocab)
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD))
    steps: list[Any] = [
        normalizers.Replace(Regex(_class_of(_is_blank)), " "),
        normalizers.Replace(Regex(_class_of(_is_dropped)), ""),
    ]
    if tokenizer.lower_case:
        marks = _class_of(lambda char: unicodedata.category(char) == "Mn")
        steps += [normalizers.Replace(Regex(_last_sigma()), "\u03c2"), normalizers.Lowercase(), normalizers.NFD()]
        steps += [normalizers.Replace(Regex(marks), "")]
    made.normalizer = normalizers.Sequence(steps)
    alone = "".join(f"{_code(each.start)}-{_code(each.stop - 1)}" for each in IDEOGRAPHS)
    cuts = (_class_of(is_punctuation), f"[{alone}]")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), *(pre_tokenizers.Split(Regex(cut), "isolated") for cut in cuts)]
    )
    made.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    behind = [token for token, number in vocab.items() if number in tokenizer.specials.extra]
    names = [*_SPECIAL, *(token for token in ("[BOS]", "[EOS]") if token in vocab), *behind]
    made.add_special_tokens([AddedToken(name, normalized=False) for name in sorted(names, key=vocab.__getitem__)])
    ends = (("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"]))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return made


def _last_sigma() -> str:
    """Return an expression for the sigma that ends a word in Python; the library lowers letter by letter."""
    cased = _class_of(lambda char: f"{char}\u03a3".lower().endswith("\u03c2"))
    mark = _class_of(lambda char: f"{char}\u03a3".lower()[-1] != f"a{char}\u03a3".lower()[-1] == "\u03c2")
    before = "|".join(f"{cased}{mark * count}" for count in range(_MOST_MARKS + 1))
    return f"(?<={before})\u03a3(?!{mark}*{cased})"


def _is_blank(char: str) -> bool:
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def _is_dropped(char: str) -> bool:
    return not _is_blank(char) and (char in "\0\ufffd" or unicodedata.category(char) in ("Cc", "Cf"))


def _class_of(rule: Callable[[str], bool]) -> str:
    """Return a class of a regular expression with the characters for which ``rule`` holds."""
    return f"[{''.join(_ranges(code for code in _codes() if rule(chr(code))))}]"


@functools.cache
def _codes() -> tuple[int, ...]:
    """Return the characters for which any rule here may hold: most letters without case are none of them."""
    every = ((code, unicodedata.category(chr(code))) for code in range(sys.maxunicode + 1))
    return tuple(code for code, kind in every if kind not in ("Cn", "Co", "Cs") and (kind != "Lo" or code < 0x300))


def _ranges(codes: Iterable[int]) -> Iterator[str]:
    found: list[list[int]] = []
    for code in codes:
        if found and code == found[-1][1] + 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    yield from (f"{_code(first)}-{_code(last)}" for first, last in found)


def _code(code: int) -> str:
    return f"\\x{{{code:x}}}"


def differing(tokenizer: WordPieceTokenizer, samples: Iterable[str], path: Path) -> list[str]:
    """Return the ``samples`` to which what was written gives other ids."""
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(path))
    names = [token["content"] for token in json.loads(path.read_text(encoding="utf8"))["added_tokens"]]
    plain = [text for text in samples if not any(name in text for name in names)]
    return [text for text in plain if made.encode(text, add_special_tokens=False).ids != tokenizer.encode(text)]
