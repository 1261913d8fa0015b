"""One chat as tokens, what is learnt of it, and how it is cut to the length of a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from megads.data.chat.conversations import Conversation
from megads.data.chat.encoding import ChatEncoder, Flags, Ids
from megads.data.chat.folder_template import ChatTemplate, FolderTemplate
from megads.data.chat.templates import FORMS, NAMES, NamedTemplate, Template
from megads.data.samples.bounds import bounds_of
from megads.data.tokenizers.base import Tokenizer
from megads.data.tokenizers.types.huggingface import HFTokenizer
from megads.errors import ConfigError, DataError
from megads.text.plural import plural

NOT_COUNTED = -1


@dataclass(frozen=True)
class Example:
    """What a model is trained on of one chat.

    Attributes:
        tokens: ``[N]`` int64, those that the model reads.
        labels: ``[N]`` int64: the token that follows each if it is part of an answer, else -1. The last counts.
        contexts: the texts that the question is about, as they stand in ``tokens``; for models that read them apart.
    """

    tokens: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    contexts: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass
class Report:
    """What became of the chats of a file."""

    counts: Counter[str] = field(default_factory=Counter)

    def lines(self, path: str) -> list[str]:
        """Return lines worth showing to the user."""
        found, total = self.counts, self.counts["chats"]
        skipped = {
            "without an answer": found["without_answer"],
            "whose answer begins behind SEQ tokens": found["too_long"],
        }
        lines = [
            f"{path}: {count} of {plural(total, 'chat')} skipped, {why}" for why, count in skipped.items() if count
        ]
        if found["shorter_contexts"]:
            lines.append(f"{path}: contexts of {plural(found['shorter_contexts'], 'chat')} are cut to fit SEQ")
        if found["cut"]:
            lines.append(f"{path}: {plural(found['cut'], 'chat')} longer than SEQ lose their ends")
        return lines


class ExampleMaker:
    """Makes examples of chats.

    A chat of more than ``seq_length`` tokens first loses words at the end of its contexts; then what is
    behind the last token that fits. One of which no answer is left is skipped: :attr:`report` counts all of these.

    Args:
        template: the form of the text.
        vocab_size: tokens that the model knows; 0: not looked at.
    """

    def __init__(self, tokenizer: Tokenizer, template: Template, seq_length: int, vocab_size: int = 0):
        self.encode, self.template = ChatEncoder(tokenizer), template
        self.seq_length, self.vocab_size, self.report = seq_length, vocab_size, Report()
        (self.bound,) = bounds_of(vocab_size, None)

    def __call__(self, chat: Conversation) -> Example | None:
        """Return the example of a chat; None where it has nothing to learn.

        Raises:
            DataError: the template has no place for its messages, or a token is outside of what the model knows.
        """
        counts = self.report.counts
        counts["chats"] += 1
        if not chat.has_answer:
            counts["without_answer"] += 1
            return None
        ids, flags = self.tokens_of(chat)
        if len(ids) > self.seq_length + 1 and chat.contexts:
            chat = self._with_shorter_contexts(chat)
            ids, flags = self.tokens_of(chat)
            counts["shorter_contexts"] += 1
        last = _last(flags)
        is_cut = last > self.seq_length
        if is_cut:
            last = _last(flags[: self.seq_length + 1])
        if last < 0:
            counts["too_long" if is_cut else "without_answer"] += 1
            return None
        counts["cut"] += is_cut
        labels = np.where(flags[1 : last + 1], ids[1 : last + 1], NOT_COUNTED)
        return Example(ids[:last].copy(), labels, chat.contexts)

    def tokens_of(self, chat: Conversation) -> tuple[Ids, Flags]:
        """Return all tokens of a chat, and which of them are part of an answer that counts; errors as a call."""
        try:
            ids, flags = self.encode(self.template.pieces(chat.with_contexts()))
        except DataError as error:
            raise DataError(f"{chat.where}: {error}") from None
        if self.vocab_size and (problem := self.bound.problem(ids)):
            raise DataError(f"{chat.where}: the text gives {problem}; use the tokenizer of the model")
        return ids, flags

    def _with_shorter_contexts(self, chat: Conversation) -> Conversation:
        """Return the chat with as many words of its contexts, from the first on, as fit."""
        words = [each.split(" ") for each in chat.contexts]
        least, most = 0, sum(map(len, words))
        while most - least > 1:
            middle = (least + most) // 2
            fits = len(self.tokens_of(replace(chat, contexts=_first_words(words, middle)))[0]) <= self.seq_length + 1
            least, most = (middle, most) if fits else (least, middle)
        return replace(chat, contexts=_first_words(words, least))


def _first_words(texts: Sequence[Sequence[str]], count: int) -> tuple[str, ...]:
    """Return the texts that hold the first ``count`` words of all."""
    found = []
    for words in texts:
        if count > 0:
            found.append(" ".join(words[:count]))
        count -= len(words)
    return tuple(found)


def _last(flags: Flags) -> int:
    """Return the place of the last flag that is set; -1 where none is, or only the first: nothing predicts that."""
    places = np.flatnonzero(flags)
    return int(places[-1]) if len(places) and places[-1] > 0 else -1


def find_template(name: str, tokenizer: Tokenizer) -> Template:
    """Return the chat template with a name; ``auto``: the one in the tokenizer's folder, without one ``plain``.

    Raises:
        ConfigError: it is not known, or needs tokens that the vocabulary lacks.
    """
    encoder = ChatEncoder(tokenizer)
    if name == "auto" and isinstance(tokenizer, HFTokenizer):
        found = ChatTemplate(tokenizer.path.parent)
        if found.text:
            special = [each.content for each in tokenizer.inner.get_added_tokens_decoder().values() if each.special]
            return FolderTemplate(found, special)
    chosen = "plain" if name == "auto" else name
    if chosen not in FORMS:
        raise ConfigError(f"CHAT_TEMPLATE={name}: not one of auto, {NAMES}")
    form, ends = FORMS[chosen], encoder.ends
    missing = [each for each in form.needs if encoder.id_of(each) is None]
    if missing:
        raise ConfigError(f"CHAT_TEMPLATE={chosen}: the tokenizer has no token {missing[0]}; use plain, or another")
    if not form.end and not ends.eos:
        raise ConfigError(f"CHAT_TEMPLATE={chosen}: the tokenizer has no token that ends an answer; use another one")
    if form.needs_bos and not ends.bos:
        raise ConfigError(f"CHAT_TEMPLATE={chosen}: the tokenizer has no token that begins a text; use another one")
    return NamedTemplate(chosen, ends)
