"""``ftfy.fix_text`` in a tenth of its time, character for character: most lines need none of what it tries.

ftfy repairs line by line, and asks every line for every kind of damage. Here, character classes say which lines can
have any; the others stay, or only have their curly quotes replaced. What may be damaged goes to ftfy itself.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from typing import Any

from megads.errors import DependencyError

# Characters that with each other and ASCII never look like damage to ftfy's heuristic: typographic marks, some letters,
# East Asian scripts, emoji. True of the heuristic whose pattern has this checksum; with another one every line that is
# not ASCII is looked at. The test of this module derives it from the pattern.
SAFE = (
    "\u2018\u2019\u201c\u201d\u2013\u2014\u2026\u00a0\u00b7\u00ad\u2022\u00a9\u00ae\u00b0\u2122\u00ab\u00bb\u00b4"
    "\u2011\u2032\u2033\u2212\u2192\u00bf\u00a1\u00f2-\u00f6\u00f8-\u00fb\u00fd"
    "\u3041-\u30ff\u4e00-\u9fff\uac00-\ud7a3\U0001f300-\U0001faff"
)
PATTERN_CRC = 1455352246
_LONGEST = 1_000_000  # characters that ftfy repairs at once
_LINE_BREAKS = (0x0D, 0x85, 0x2028, 0x2029)


class Repair:
    """Repairs texts as ``ftfy.fix_text`` does with its default settings.

    Raises:
        DependencyError: ftfy is missing.
    """

    def __init__(self) -> None:
        try:
            import ftfy
            from ftfy.badness import BADNESS_RE, is_bad
            from ftfy.chardata import (
                CONTROL_CHARS,
                DOUBLE_QUOTE_RE,
                HTML_ENTITY_RE,
                LIGATURES,
                SINGLE_QUOTE_RE,
                WIDTH_MAP,
            )
        except ImportError:
            raise DependencyError(
                "megads corpus clean needs ftfy; pip install -e '.[corpus]' in the checkout"
            ) from None
        self._ftfy, self._is_bad, self._entity = ftfy, is_bad, HTML_ENTITY_RE
        self._single, self._double = SINGLE_QUOTE_RE, DOUBLE_QUOTE_RE
        touched = {*CONTROL_CHARS, *LIGATURES, *WIDTH_MAP, *_LINE_BREAKS, *range(0x80, 0xA0), *range(0xD800, 0xE000)}
        # What a character alone makes ftfy change, but for curly quotes.
        self._touched = re.compile("[" + "".join(f"\\U{code:08x}" for code in sorted(touched)) + "]")
        self._touched_ascii = bytes(code for code in touched if code < 128)
        safe = SAFE if zlib.crc32(BADNESS_RE.pattern.encode()) == PATTERN_CRC else ""
        self._suspect = re.compile(f"[^\\x00-\\x7f{safe}]")
        self._quote = re.compile(f"{SINGLE_QUOTE_RE.pattern}|{DOUBLE_QUOTE_RE.pattern}")

    def __call__(self, text: str) -> str:
        """Return the repaired text."""
        has_entity = "&" in text and self._entity.search(text) is not None
        if text.isascii():
            raw = text.encode()
            if not has_entity and len(raw.translate(None, self._touched_ascii)) == len(raw):
                return text
        elif not has_entity and self._touched.search(text) is None and self._suspect.search(text) is None:
            fixed = self._uncurled(text)
            # A part of a normalized text is normalized, so lines need not be looked at one by one.
            if unicodedata.is_normalized("NFC", fixed):
                return fixed
        if len(text) > _LONGEST:
            fixed = self._ftfy.fix_text(text)
            return fixed
        return self._by_lines(text)

    def _by_lines(self, text: str) -> str:
        config = self._ftfy.TextFixerConfig(explain=False)
        fixed = []
        for line in _lines(text):
            if config.unescape_html and "<" in line:
                config = config._replace(unescape_html=False)  # for this line and all behind it
            fixed.append(self._line(line, config))
        return "".join(fixed)

    def _line(self, line: str, config: Any) -> str:
        if self._touched.search(line) is None and not (
            config.unescape_html and "&" in line and self._entity.search(line)
        ):
            if line.isascii():
                return line
            if not self._looks_bad(line):
                fixed = self._uncurled(line)
                if unicodedata.is_normalized("NFC", fixed) and (fixed is line or not self._looks_bad(fixed)):
                    return fixed
        found: str = self._ftfy.fix_and_explain(line, config).text
        return found

    def _looks_bad(self, line: str) -> bool:
        return self._suspect.search(line) is not None and self._is_bad(line)

    def _uncurled(self, text: str) -> str:
        if self._quote.search(text) is None:
            return text
        return self._single.sub("'", self._double.sub('"', text))


def _lines(text: str) -> list[str]:
    """Return the lines of a text with their breaks, cut at line feeds alone."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines
