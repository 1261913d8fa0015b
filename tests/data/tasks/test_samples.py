"""Epochs of a task, and files that are scored once."""

import numpy as np
import pytest

from megads.data.tasks.examples import Example, TaskFile
from megads.data.tasks.rows import Packer, TaskRow
from megads.data.tasks.samples import FileSamples, TrainSamples, steps_per_epoch
from megads.data.tokenizers.base import Specials
from megads.errors import ConfigError


class Words:
    specials = Specials(cls=1, sep=2, pad=0)

    def encode_plain(self, text):
        return [int(text)]


PACK = Packer(Words(), TaskRow(4))
EXAMPLES = [Example(((str(number + 10), None),), number % 3) for number in range(7)]


def tokens(samples, indices):
    return [int(samples[i][1]) - 10 if samples[i][-1] >= 0 else None for i in indices]


def train(*, keep_last=False, seed=5, batch=3):
    return TrainSamples(EXAMPLES, PACK, batch=batch, keep_last=keep_last, seed=seed, samples=100)


def test_an_epoch_has_every_example_once_but_those_behind_its_last_full_step():
    samples = train()
    assert samples.per_epoch == 6
    epochs = [tokens(samples, range(first, first + 6)) for first in (0, 6, 12)]
    assert all(len(set(each)) == 6 and set(each) <= set(range(7)) for each in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert tokens(train(), range(18)) == [*epochs[0], *epochs[1], *epochs[2]]
    assert tokens(train(seed=6), range(6)) != epochs[0]


def test_with_keep_last_no_example_is_dropped():
    samples = train(keep_last=True)
    assert samples.per_epoch == 9
    assert sorted(tokens(samples, range(9, 16))) == list(range(7))
    assert tokens(samples, range(16, 18)) == [None, None]
    assert np.array_equal(samples[16], TaskRow(4).empty())


def test_any_order_of_reading_gives_the_same():
    one, other = train(), train()
    backwards = {i: one[i].tolist() for i in reversed(range(30))}
    assert all(other[i].tolist() == backwards[i] for i in range(30))


def test_steps_of_an_epoch():
    assert [steps_per_epoch(7, 3, keep_last=keep) for keep in (False, True)] == [2, 3]
    assert steps_per_epoch(2, 3, keep_last=True) == 1
    with pytest.raises(ConfigError, match=r"^GLOBAL_BATCH=3 is larger than the 2 examples to train on; lower it, or"):
        steps_per_epoch(2, 3, keep_last=False)


def test_a_file_is_filled_with_rows_that_do_not_count():
    samples = FileSamples(TaskFile("f", EXAMPLES), PACK, 4)
    assert (len(samples), samples.blocks) == (8, 2)
    assert tokens(samples, range(8)) == [0, 1, 2, 3, 4, 5, 6, None]
