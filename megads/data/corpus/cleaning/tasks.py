"""``megads corpus clean --tasks``: the tasks of Megatron-LM's cleanup_fix_dataset.py, with its order and its limits."""

from __future__ import annotations

import re
from typing import Any

from megads.data.corpus.cleaning.language import Language
from megads.data.corpus.cleaning.repair import Repair
from megads.data.corpus.frame.step import Document, Drop, Result, Step
from megads.errors import ConfigError
from megads.text.plural import plural

TASKS = ("remove_512", "remove_256_javascript", "remove_512_non_english", "ftfy_fix_text", "general_cleaning")
"""In the order in which they are done, whatever the order in which they are named."""
_SHORT, _SHORT_SCRIPT = 512, 256  # characters
# Runs of spaces, and of line breaks behind a word with a space behind them.
_BLANKS = re.compile(r"  +|\b\n+ |\b\n+")


class Tasks(Step):
    """Drops documents by the first task that hits, then changes the text by the first that changes texts.

    As in Megatron-LM, ``general_cleaning`` is not done where ``ftfy_fix_text`` is: :attr:`note` says so.

    Args:
        tasks: some of :data:`TASKS`.
        languages: codes that ``remove_512_non_english`` keeps.
        key: of the text.
    """

    name = "clean"
    takes_surrogates = True

    def __init__(self, tasks: tuple[str, ...], languages: tuple[str, ...] = ("en",), key: str = "text"):
        if not tasks:
            raise ConfigError(f"--tasks: names no task; some of {' '.join(TASKS)}")
        for task in tasks:
            if task not in TASKS:
                raise ConfigError(f"--tasks {task}: unknown; some of {' '.join(TASKS)}")
        self.key, self._tasks = key, frozenset(tasks)
        self._languages = frozenset(languages)
        self._language = Language() if "remove_512_non_english" in tasks else None
        if self._language is not None:
            self._language.check(languages)
        self._repair = Repair() if "ftfy_fix_text" in tasks else None

    @property
    def note(self) -> str:
        """What the user may not expect; "" for nothing."""
        if {"ftfy_fix_text", "general_cleaning"} <= self._tasks:
            return "as in Megatron-LM, general_cleaning is skipped with ftfy_fix_text; run it in a second call"
        return ""

    def options(self) -> dict[str, Any]:
        """Return everything that decides the output."""
        tasks = [task for task in TASKS if task in self._tasks]
        return {"tasks": tasks, "languages": sorted(self._languages), "key": self.key}

    def judge(self, document: Document, result: Result) -> Drop | list[bytes] | None:
        """Return why a document is dropped, its line with another text, or None where it stays as it is."""
        text, length = document.text, len(document.text)
        if "remove_512" in self._tasks and length < _SHORT:
            return Drop("remove_512", plural(length, "character"))
        if "remove_256_javascript" in self._tasks and length < _SHORT_SCRIPT and "javascript" in text.lower():
            return Drop("remove_256_javascript", plural(length, "character"))
        if self._language is not None and length < _SHORT:
            language = self._language(text)
            if language not in self._languages:
                return Drop("remove_512_non_english", language)
        if self._repair is not None:
            fixed = self._repair(text)
        elif "general_cleaning" in self._tasks:
            fixed = _BLANKS.sub(" ", text)
        else:
            return None
        return None if fixed == text else [document.replaced(**{self.key: fixed})]
