"""Token layouts of a task, by Megatron's rules."""

from types import SimpleNamespace

import numpy as np
import pytest

from megads.data.tasks.examples import Example
from megads.data.tasks.race import MAX_QUESTION
from megads.data.tasks.rows import Marks, Packer, TaskRow, layout
from megads.data.tokenizers.base import Specials
from megads.errors import ConfigError, DataError

BERT = Marks(1, 2, 0)
NONE = Marks(None, None, 0)


def by_megatron(a, b, size):
    """The rule of Megatron-LM's tasks/data_utils.py, written down again: tokens and types without padding."""
    ids, types = [1, *a, 2], [0] * (len(a) + 2)
    if b is not None:
        ids, types = ids + list(b), types + [1] * len(b)
    trimmed = len(ids) >= size
    if trimmed:
        ids, types = ids[: size - 1], types[: size - 1]
    if b is not None or trimmed:
        ids, types = [*ids, 2], [*types, 0 if b is None else 1]
    return ids, types


@pytest.mark.parametrize("second", [None, 0, 1, 2, 3, 5, 9])
@pytest.mark.parametrize("first", [0, 1, 4, 5, 6, 7, 12])
def test_pairs_are_laid_out_as_megatron_does(first, second):
    a, b = list(range(10, 10 + first)), None if second is None else list(range(50, 50 + second))
    found = layout(a, b, 8, BERT)
    assert found == by_megatron(a, b, 8)
    assert len(found[0]) == len(found[1]) <= 8
    if len(a) + 3 + (second or 0) <= 8 and second is not None:
        assert found[0] == [1, *a, 2, *b, 2]


def test_texts_without_marks_are_cut_at_the_end():
    assert layout([5, 6], [7], 8, NONE) == ([5, 6, 7], [0, 0, 1])
    assert layout([5, 6], [7, 8], 3, NONE) == ([5, 6, 7], [0, 0, 1])
    assert layout([], None, 8, Marks(None, None, 3)) == ([3], [0])


def tokenizer(specials, eod=None):
    class Words:
        def __init__(self):
            self.specials = specials

        @property
        def eod(self):
            if eod is None:
                raise ConfigError("none")
            return eod

        def encode(self, text):
            return [1, *self.encode_plain(text), 2]  # as a tokenizer.json of BERT does

        def encode_plain(self, text):
            return list(map(int, text.split()))

    return Words()


def test_marks_are_those_of_the_tokenizer():
    assert Marks.of(tokenizer(Specials(cls=1, sep=2, pad=0, bos=7, eos=8))) == Marks(1, 2, 0)
    assert Marks.of(tokenizer(Specials(bos=7, eos=8))) == Marks(7, 8, 8)
    assert Marks.of(tokenizer(Specials(), eod=9)) == Marks(None, 9, 9)
    assert Marks.of(tokenizer(Specials())) == Marks(None, None, 0)


def test_a_row_holds_every_choice_and_the_label():
    row = TaskRow(6, 2)
    pack = Packer(tokenizer(Specials(cls=1, sep=2, pad=9)), row)
    found = pack(Example((("5", "7"), ("5 6", None)), 1))
    first = [1, 5, 2, 7, 2, 9, 0, 0, 0, 1, 1, 0, 5]
    second = [1, 5, 6, 2, 9, 9, 0, 0, 0, 0, 0, 0, 4]
    assert found.tolist() == [*first, *second, 1]
    assert found.dtype == np.int64
    assert row.width == len(found) == 27
    empty = row.empty()
    assert (empty[-1], empty[12], empty[25]) == (-1, 1, 1)


def test_a_question_with_its_answer_leaves_room_for_the_article():
    pack = Packer(tokenizer(Specials(cls=1, sep=2, pad=0)), TaskRow(256))
    words = " ".join(["5"] * 200)
    cut = pack(Example(((words, "7 8"),), 0, cuts_first=True))
    assert cut[: MAX_QUESTION + 6].tolist() == [1, *[5] * MAX_QUESTION, 2, 7, 8, 2, 0]
    assert pack(Example(((words, "7 8"),), 0))[:205].tolist() == [1, *[5] * 200, 2, 7, 8, 2][:205]
    assert SimpleNamespace(**vars(pack.marks)).pad == 0


def test_what_the_model_does_not_know_is_refused():
    words = tokenizer(Specials(cls=1, sep=2, pad=0))
    pack = Packer(words, TaskRow(6), vocab_size=8, labels=3)
    assert pack(Example((("5", "7"),), 2))[-1] == 2
    assert pack(Example((("5", "7"),), -1))[-1] == -1
    with pytest.raises(DataError, match="the text '5' gives token 8, but the model knows 8 tokens; use the tokenizer"):
        pack(Example((("5", "8"),), 2))
    with pytest.raises(DataError, match="an example has the label 3, which is not one of -1 to 2"):
        pack(Example((("5", "7"),), 3))
