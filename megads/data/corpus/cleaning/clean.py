"""``megads corpus clean``: repaired texts of wanted languages, long enough, as Megatron-LM's cleanup_dataset.py."""

from __future__ import annotations

import os
from typing import Any

from megads.data.corpus.cleaning.language import Language
from megads.data.corpus.cleaning.repair import Repair
from megads.data.corpus.frame.step import Document, Drop, Result, Step
from megads.data.tokenizers.base import Tokenizer, TokenizerSpec
from megads.text.plural import plural

MIN_TOKENS = 128
MIN_CHARS = 512
"""Characters of a document where no tokenizer counts its tokens."""
_MOST_PER_TOKEN = 8
"""Characters: a text of so many for each token that it needs is not tokenized. A token has five on average."""


class Clean(Step):
    """Repairs each text, then drops documents in other languages, then short ones.

    Args:
        languages: codes of those that are kept.
        tokenizer: what counts tokens; None: characters are counted.
        min_tokens: tokens of a document, with a tokenizer.
        min_chars: characters of a document.
        key: of the text.
    """

    name = "clean"
    takes_surrogates = True  # they are repaired

    def __init__(
        self,
        languages: tuple[str, ...] = ("en",),
        tokenizer: TokenizerSpec | None = None,
        min_tokens: int = MIN_TOKENS,
        min_chars: int = MIN_CHARS,
        key: str = "text",
    ):
        self.key, self._languages, self._spec = key, frozenset(languages), tokenizer
        self._min_tokens, self._min_chars = min_tokens, min_chars
        self._repair, self._language = Repair(), Language()
        self._language.check(languages)
        self._fingerprint = ""
        self._tokenizer: Tokenizer | None = None
        if tokenizer is not None:
            from megads.data.tokenizers.build import identity

            self._fingerprint = identity(tokenizer)

    def options(self) -> dict[str, Any]:
        """Return everything that decides the output."""
        least = {"min_chars": self._min_chars}
        if self._spec is not None:
            least["min_tokens"] = self._min_tokens
        return {"languages": sorted(self._languages), "key": self.key, "tokenizer": self._fingerprint, **least}

    def begin(self) -> None:
        """Load the tokenizer."""
        if self._spec is not None:
            # The library would start threads of its own in every worker.
            os.putenv("RAYON_NUM_THREADS", "1")
            os.putenv("TOKENIZERS_PARALLELISM", "false")
            from megads.data.tokenizers.build import make_tokenizer

            self._tokenizer = make_tokenizer(self._spec)

    def judge(self, document: Document, result: Result) -> Drop | list[bytes] | None:
        """Return why a document is dropped, its line with the repaired text, or None where nothing was to repair."""
        text = self._repair(document.text)
        language = self._language(text)
        if language not in self._languages:
            return Drop("language", language)
        if (short := self._short(text)) is not None:
            return short
        if text == document.text:
            return None
        result.count("repaired")
        return [document.replaced(**{self.key: text})]

    def _short(self, text: str) -> Drop | None:
        if len(text) < self._min_chars:
            return Drop("short", plural(len(text), "character"))
        if self._tokenizer is not None and len(text) < _MOST_PER_TOKEN * self._min_tokens:
            count = len(self._tokenizer.encode(text))
            if count < self._min_tokens:
                return Drop("short", plural(count, "token"))
        return None
