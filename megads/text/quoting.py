"""Words of a line, of which some hold blanks: a word that begins with a quote ends with the next one of its kind."""

from __future__ import annotations

import re

_WORD = re.compile(r"\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'#]\S*))(?=\s|$)")
_END = re.compile(r"\s*(#.*)?$", re.DOTALL)


def split_words(text: str) -> list[str]:
    """Return the words of ``text``, without the quotes around them and without a comment.

    Words stand between blanks. ``"my books"`` and ``'my books'`` are one word each; a quote inside a word is part of
    it, and a backslash is an ordinary character. A ``#`` at the beginning of a word begins a comment.

    Raises:
        ValueError: a quote is not closed, or something follows it without a blank.
    """
    words, place = [], 0
    while not _END.match(text, place):
        found = _WORD.match(text, place)
        if found is None:
            raise ValueError(f"{text[place:].strip()[:80]} begins with a quote that does not end before a blank")
        words.append(next(each for each in found.groups() if each is not None))
        place = found.end()
    return words


def quoted(word: str) -> str:
    """Return ``word`` as :func:`split_words` takes it back; quotes only where they are needed."""
    if word and not re.search(r"\s", word) and word[0] not in "\"'#":
        return word
    return f"'{word}'" if '"' in word else f'"{word}"'
