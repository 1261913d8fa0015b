"""Libraries that encode many texts at once, each behind the same small interface.

Every one of them is only a candidate: ``fastest.choose_encoder`` takes it for a tokenizer when it has given the same
ids as the original. All of them put nothing around a text themselves; what the tokenizer wants there is added here.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import numpy as np

from megads.data.tokenizers.base import Encoded, Tokenizer
from megads.data.tokenizers.types.bert import LONGEST_WORD, WordPieceTokenizer, pieces
from megads.data.tokenizers.types.gpt2 import GPT2Tokenizer
from megads.data.tokenizers.types.huggingface import HFTokenizer
from megads.data.tokenizers.types.sentencepiece import SentencePieceTokenizer
from megads.errors import DataError

Lists = Callable[[list[str]], Encoded]


class UnfitError(Exception):
    """A library that cannot do what the tokenizer does; the text says why."""


@dataclass(frozen=True)
class BatchEncoder:
    """A library, and what to do around it."""

    name: str  # with its version
    run: Lists  # ids of texts, nothing around them
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def encode_batch(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of every text end to end, and where each begins.

        Raises:
            DataError: a text holds half of a surrogate pair, which UTF-8 cannot.
        """
        try:
            ids, offsets = self.run(list(texts))
        except Exception:
            _refuse_halves(texts)  # libraries say it in many ways
            raise
        if not self.before and not self.after:
            return ids, offsets
        return _surround(ids, offsets, self.before, self.after)


def original(tokenizer: Tokenizer) -> BatchEncoder:
    """Return the tokenizer itself, text by text."""
    name = f"{type(tokenizer).__name__}.encode"
    return BatchEncoder(name, lambda texts: pack([tokenizer.encode(each) for each in texts]))


def hugging_face(tokenizer: Tokenizer) -> BatchEncoder:
    """Return the tokenizers library with all its threads (RAYON_NUM_THREADS)."""
    inner = _inner(tokenizer)
    around = isinstance(tokenizer, HFTokenizer)

    def run(texts: list[str]) -> Encoded:
        found = inner.encode_batch_fast(texts, add_special_tokens=around)
        return pack([each.ids for each in found])

    return BatchEncoder(_version("tokenizers"), run)


def fastokens(tokenizer: Tokenizer) -> BatchEncoder:
    """Return fastokens, made from the tokenizer's own JSON; it uses RAYON_NUM_THREADS threads."""
    plan, before, after = _bare_json(tokenizer)
    from fastokens import Tokenizer as Library  # type: ignore[import-not-found,unused-ignore]

    left = _replace_metaspace(plan)
    library = _made(lambda: Library.from_json_str(json.dumps(plan, ensure_ascii=False)))

    def run(texts: list[str]) -> Encoded:
        ids, offsets = library.encode_batch_flat(texts)
        return np.frombuffer(ids, "<u4"), np.frombuffer(offsets, "<i8")

    return BatchEncoder(_version("fastokens"), _leaving(left, _encode_bare(tokenizer), run), before, after)


def _replace_metaspace(plan: dict[str, Any]) -> re.Pattern[str] | None:
    """Put Metaspace, which fastokens lacks, as the normalizer that does the same; return for which texts it does not.

    Metaspace puts a mark before a text unless one is there, and, by its scheme, not behind an added token; so texts
    that begin with a blank or a mark, and texts with added tokens, are left to the original.
    """
    step = plan.get("pre_tokenizer") or {}
    if step.get("type") != "Metaspace" or step.get("split", True) or plan.get("normalizer") is not None:
        return None
    mark = step["replacement"]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": mark}
    before = [{"type": "Prepend", "prepend": mark}] if step["prepend_scheme"] != "never" else []
    plan |= {"pre_tokenizer": None, "normalizer": {"type": "Sequence", "normalizers": [*before, replace]}}
    added = (re.escape(token["content"]) for token in plan["added_tokens"])
    return re.compile("|".join([rf"\A[ {re.escape(mark)}]", *added]))


def kitoken(tokenizer: Tokenizer) -> BatchEncoder:
    """Return kitoken, one thread, made from the tokenizer's own JSON or sentencepiece model."""
    from kitoken import Kitoken

    if isinstance(tokenizer, SentencePieceTokenizer):
        model = _made(lambda: Kitoken.from_sentencepiece(tokenizer.processor.serialized_model_proto()))
        run = _around_tokens(tokenizer, lambda texts: pack(model.encode_all(texts, False)))
        return BatchEncoder(_version("kitoken"), run, tokenizer.prefix)
    plan, before, after = _bare_json(tokenizer)
    library = _made(lambda: Kitoken.from_tokenizers(json.dumps(plan, ensure_ascii=False).encode()))
    return BatchEncoder(_version("kitoken"), lambda texts: pack(library.encode_all(texts, True)), before, after)


def sentencepiece(tokenizer: Tokenizer) -> BatchEncoder:
    """Return the original library of a .model, several texts a call."""
    if not isinstance(tokenizer, SentencePieceTokenizer):
        raise UnfitError("sentencepiece reads .model files only")

    def run(texts: list[str]) -> Encoded:
        return pack(tokenizer.processor.encode(texts, num_threads=1, out_type="numpy") if texts else [])

    return BatchEncoder(_version("sentencepiece"), _around_tokens(tokenizer, run), tokenizer.prefix)


def _refuse_halves(texts: Sequence[str]) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"a text holds half of a surrogate pair at character {error.start}") from None


class _Chunks(dict[str, bytes]):
    """Ids of the chunks seen so far.

    A new chunk of ASCII letters and digits needs no cleaning, the others are encoded by the original.
    """

    MOST = 1 << 20  # chunks kept; then it starts again, so that memory stays flat
    LONGEST = 64  # characters of a chunk that is kept

    def __init__(
        self, vocab: Mapping[str, int], unknown: int, longest: int, lower: bool, encode: Callable[[str], list[int]]
    ) -> None:
        super().__init__()
        self.encode, self._lower = encode, lower
        self._vocab, self._unknown, self._longest = vocab, unknown, longest

    def __missing__(self, chunk: str) -> bytes:
        if chunk.isascii() and chunk.isalnum():
            ids = pieces(chunk.lower() if self._lower else chunk, self._vocab, self._unknown, self._longest)
        else:
            ids = self.encode(chunk)
        content = np.array(ids, "<u4").tobytes()
        if len(self) >= self.MOST:
            self.clear()
        if len(chunk) <= self.LONGEST:
            self[chunk] = content
        return content


def words(tokenizer: Tokenizer) -> BatchEncoder:
    """Return WordPiece with a memory of words, exact by construction.

    BERT's rules treat what lies between blanks and ASCII punctuation on its own, and most of a text is words seen
    before. Python's lower case knows one rule that looks further: a capital sigma's depends on the letters around it,
    across some punctuation. Texts with one, and texts with added tokens, are left to the original.
    """
    if not isinstance(tokenizer, WordPieceTokenizer):
        return _hugging_face_words(tokenizer)
    lower, vocab = tokenizer.lower_case, tokenizer.vocab
    known = _Chunks(vocab, vocab["[UNK]"], LONGEST_WORD, lower, tokenizer.encode)
    return _remembering(known, re.compile("\u03a3") if lower else None, ideographs=True)


def _hugging_face_words(tokenizer: Tokenizer) -> BatchEncoder:
    plan, before, after = _bare_json(tokenizer)
    model, normalizer, splitter = plan["model"], plan.get("normalizer") or {}, plan.get("pre_tokenizer") or {}
    if (model.get("type"), normalizer.get("type")) != ("WordPiece", "BertNormalizer"):
        raise UnfitError("for WordPiece with BERT's normalizer only")
    if splitter.get("type") != "BertPreTokenizer" or model["continuing_subword_prefix"] != "##":
        raise UnfitError("for WordPiece with BERT's pre-tokenizer only")
    added = plan.get("added_tokens") or []
    if any(token.get("normalized") for token in added):
        raise UnfitError("added tokens are looked for in normalized text")
    vocab, longest, lower = model["vocab"], model["max_input_chars_per_word"], bool(normalizer.get("lowercase"))
    known = _Chunks(vocab, vocab[model["unk_token"]], longest, lower, _encode_bare(tokenizer))
    left = re.compile("|".join(re.escape(token["content"]) for token in added)) if added else None
    made = _remembering(known, left, ideographs=bool(normalizer.get("handle_chinese_chars")))
    return replace(made, before=before, after=after)


_PUNCTUATION = r"!-/:-@\[-`{-~"
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff"  # those that all versions of BERT's rules take for words of their own


def _remembering(known: _Chunks, left: re.Pattern[str] | None, *, ideographs: bool) -> BatchEncoder:
    """Return an encoder that remembers chunks; texts in which ``left`` is found go to the original whole."""
    alone = _PUNCTUATION + (_IDEOGRAPHS if ideographs else "")
    find = re.compile(rf"[{alone}]|[^ \t\n\r{alone}]+").findall
    look_up = known.__getitem__

    def run(texts: list[str]) -> Encoded:
        parts = []
        for text in texts:
            text.encode()  # a half of a surrogate pair is refused here as everywhere
            if left is not None and left.search(text):
                parts.append(np.array(known.encode(text), "<u4").tobytes())
            else:
                parts.append(b"".join(map(look_up, find(text))))
        ids = np.frombuffer(b"".join(parts), "<u4")
        return ids, _offsets(np.fromiter(map(len, parts), np.int64, len(parts)) // 4)

    return BatchEncoder("megads words", run)


def pack(lists: Sequence[Any]) -> Encoded:
    """Return ids given as one list or array per text end to end."""
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    if lists and isinstance(lists[0], np.ndarray):
        return np.concatenate(lists).astype("<u4", copy=False), _offsets(lengths)
    flat = itertools.chain.from_iterable(lists)
    return np.fromiter(flat, "<u4", int(lengths.sum())), _offsets(lengths)


def _offsets(lengths: Any) -> Any:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _surround(ids: Any, offsets: Any, before: tuple[int, ...], after: tuple[int, ...]) -> Encoded:
    """Put ids before and after each text."""
    inner, more = max(len(offsets) - 2, 0), len(before) + len(after)
    if len(offsets) > 1:
        places = np.repeat(offsets, [len(before), *[more] * inner, len(after)])
        ids = np.insert(ids, places, [*before, *(after + before) * inner, *after])
    return ids, offsets + more * np.arange(len(offsets))


def _leaving(left: re.Pattern[str] | None, original: Callable[[str], list[int]], run: Lists) -> Lists:
    """Return ``run``, but for texts in which ``left`` is found, which go to ``original``."""
    if left is None:
        return run
    find = left.search

    def mixed(texts: list[str]) -> Encoded:
        special = [place for place, text in enumerate(texts) if find(text)]
        if not special:
            return run(texts)
        blanked = list(texts)
        for place in special:
            blanked[place] = ""
        ids, offsets = run(blanked)
        parts = np.split(ids, offsets[1:-1])
        for place in special:
            parts[place] = np.array(original(texts[place]), "<u4")
        return pack(parts)

    return mixed


def _around_tokens(tokenizer: SentencePieceTokenizer, run: Lists) -> Lists:
    """Leave texts in which special tokens are found to the original, without what it puts before them."""
    skipped = len(tokenizer.prefix)
    return _leaving(tokenizer.finder, lambda text: tokenizer.encode(text)[skipped:], run)


def _inner(tokenizer: Tokenizer) -> Any:
    if not isinstance(tokenizer, (HFTokenizer, GPT2Tokenizer)):
        raise UnfitError("made for tokenizer.json only")
    return tokenizer.inner


def _encode_bare(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """Return what encodes a text without what the tokenizer puts around it."""
    inner = _inner(tokenizer)
    return lambda text: list(inner.encode(text, add_special_tokens=False).ids)


def _bare_json(tokenizer: Tokenizer) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]:
    """Return the tokenizer's JSON without post-processor, and the ids that this puts before and after a text."""
    inner = _inner(tokenizer)
    plan = json.loads(inner.to_str())
    processor, plan["post_processor"] = plan.get("post_processor"), None
    bare, ids = _encode_bare(tokenizer)("a"), inner.encode("a").ids
    if ids == bare:
        return plan, (), ()
    places = [at for at in range(len(ids)) if bare and ids[at : at + len(bare)] == bare]
    if len(places) != 1:
        raise UnfitError(f"a post-processor of type {processor['type']}")
    return plan, tuple(ids[: places[0]]), tuple(ids[places[0] + len(bare) :])


def _made(make: Callable[[], Any]) -> Any:
    """Return what ``make`` does; whatever a library raises for a tokenizer it cannot read becomes UnfitError."""
    try:
        return make()
    except Exception as error:
        raise UnfitError((str(error).splitlines() or [type(error).__name__])[0][:120]) from None


def _version(package: str) -> str:
    return f"{package} {metadata.version(package)}"
