"""Cut texts into sentences: with a Punkt model of nltk that lies on this machine, by rules, or at line breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from megads.data.preprocess.input.sentence_rules import cut, ends_by_rules, ends_of_lines
from megads.errors import DataError, DependencyError

Splitter = Callable[[str], list[str]]

SplitterName = Literal["punkt", "rules", "lines"]

PIECE = 1_000_000
"""Characters that are split at once, as in Megatron: a sentence ends at each multiple of it."""


def make_splitter(lang: str, *, keep_newlines: bool = False, name: SplitterName = "punkt") -> Splitter:
    """Return what cuts a text into its sentences.

    Args:
        lang: name of the Punkt model, as "english"; the other splitters have none.
        name: which splitter.
        keep_newlines: white space between two sentences stays at the end of the first one.

    Raises:
        DependencyError: nltk is not installed.
        DataError: it has no model for this language; nothing is downloaded.
    """
    if name != "punkt":
        ends = ends_by_rules if name == "rules" else ends_of_lines
        return lambda text: cut(text, ends(text), keep_newlines=keep_newlines)
    try:
        import nltk
        from nltk.tokenize import punkt
    except ImportError:
        way = "pip install nltk, or pass --sentence-splitter rules"
        raise DependencyError(f"--split-sentences needs nltk; {way}") from None
    inner = _load(nltk, punkt, lang)
    if keep_newlines:
        inner._lang_vars = _keeping_newlines(punkt)

    def split(text: str) -> list[str]:
        return [each for at in range(0, len(text), PIECE) for each in inner.tokenize(text[at : at + PIECE])]

    return split


def _load(nltk: Any, punkt: Any, lang: str) -> Any:
    """Return a tokenizer of its own. Only nltk 3.9 and newer keep models as tables; before, they were programs."""
    if not hasattr(punkt, "PunktTokenizer"):
        raise DependencyError(f"--split-sentences needs nltk 3.9 or newer, this is {nltk.__version__}")
    try:
        return punkt.PunktTokenizer(lang)
    except (LookupError, ValueError, OSError):
        raise DataError(
            f"--lang {lang}: nltk finds no Punkt model tokenizers/punkt_tab/{lang} in NLTK_DATA or its usual folders, "
            "and nothing is downloaded; `python -m nltk.downloader -d FOLDER punkt_tab` on a host with internet "
            "fetches all languages, then set NLTK_DATA=FOLDER; or pass --sentence-splitter rules, which needs no model"
        ) from None


def _keeping_newlines(punkt: Any) -> Any:
    """Return Punkt's language variables with a sentence's last word and the white space behind it as its end.

    As in Megatron, which looks for the end with the word as nltk once did.
    """
    usual = punkt.PunktLanguageVars._period_context_fmt
    end, behind = "%(SentEndChars)s", r"\s+(?P<next_tok>"
    if end not in usual or behind not in usual:
        raise DependencyError("--keep-newlines does not know this version of nltk; use 3.9")
    changed = usual.replace(end, rf"\S*{end}\s*", 1).replace(behind, "(?P<next_tok>", 1)
    return type("KeepingNewlines", (punkt.PunktLanguageVars,), {"_period_context_fmt": changed})()
