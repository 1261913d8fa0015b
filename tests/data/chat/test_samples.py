"""Epochs of packed rows, their steps, and every example of a file once to score."""

import json
from collections import Counter

import numpy as np
import pytest

from megads.data.chat.rows import ChatRow
from megads.data.chat.samples import build_chats, make_epochs, read_chats, summary
from megads.errors import ConfigError
from tests.parity.layouts import Layout

SEQ = 16
ROW = ChatRow(SEQ)
NULL = {"data.tokenizer_type": "NullTokenizer", "model.vocab_size": "100", "finetune.task": "chat"}


def write(path, count, first):
    """Write chats that can be told apart: the first token is the number of the chat."""
    rows = [{"prompt": str(first + i), "response": " ".join(["90"] * (1 + i % 9))} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, count, first in (("a", 23, 0), ("b", 14, 30), ("v", 7, 60)):
        write(tmp_path / f"{name}.jsonl", count, first)

    def make(train="a.jsonl b.jsonl", **changes):
        given = {"data.cache_dir": str(tmp_path / "cache"), "finetune.train_data": train, **NULL}
        run = Layout().run(**{**given, "finetune.valid_data": "v.jsonl", "train.global_batch": "4", **changes})
        return run, read_chats(run)

    return make


def chats_of(row):
    tokens, numbers = row[ROW.tokens], row[ROW.numbers]
    return [int(tokens[np.flatnonzero(numbers == each)[0]]) for each in range(numbers.max() + 1)]


@pytest.mark.parametrize("packs", ["true", "false"])
def test_an_epoch_has_every_chat_once_and_fills_its_last_step(made, packs):
    run, data = made(**{"finetune.packs": packs, "train.train_iters": "30"})
    epochs, rows = make_epochs(run, data), build_chats(run, data).train
    orders = []
    for epoch in range(3):
        first, end = epochs.steps_until(epoch), epochs.steps_until(epoch + 1)
        taken = [chats_of(rows[i]) for i in range(4 * first, 4 * end)]
        assert sorted(chat for row in taken for chat in row) == [*range(23), *range(30, 44)]
        assert [bool(row) for row in taken] == [i < len(epochs.rows(epoch)) for i in range(len(taken))]
        assert (end - first) * 4 - len(epochs.rows(epoch)) < 4
        assert {epochs.epoch_of(step) for step in range(first, end)} == {epoch}
        orders.append(taken)
    assert orders[0] != orders[1] != orders[2]
    assert len(rows) == 30 * 4
    if packs == "true":
        assert 0.9 < epochs.fill <= 1
        assert "rows an epoch" in summary(run, data)


def test_rows_are_a_function_of_their_number_and_the_seed(made):
    run, data = made(**{"train.train_iters": "30"})
    one, two = build_chats(run, data).train, build_chats(run, data).train
    for index in (100, 3, 57, 4, 100):
        assert np.array_equal(one[index], two[index])
    other = build_chats(made(**{"train.train_iters": "30", "train.data_seed": "77"})[0], data).train
    assert any(not np.array_equal(one[i], other[i]) for i in range(8))


def test_weights_decide_how_often_a_file_is_read(made):
    run, data = made("0.25 a.jsonl 0.75 b.jsonl", **{"train.train_iters": "40"})
    epochs, rows, seen = make_epochs(run, data), build_chats(run, data).train, Counter()
    for index in range(4 * epochs.steps_until(2)):
        seen.update("ab"[chat >= 30] for chat in chats_of(rows[index]))
    assert seen == {"a": 2 * 9, "b": 2 * 28}  # of 37 chats an epoch
    assert data.weights == (0.25, 0.75)


def test_files_to_score_have_every_chat_once(made):
    run, data = made(**{"train.micro_batch": "2"})
    (rows,) = build_chats(run, data).valid
    taken = [chats_of(rows[i]) for i in range(len(rows))]
    assert len(rows) % 2 == 0
    assert sorted(chat for row in taken for chat in row) == list(range(60, 67))


def test_a_resumed_run_sees_another_file_share_or_packing(made):
    _, data = made()
    found = {data.fingerprint(packs=True), data.fingerprint(packs=False)}
    found.add(made("b.jsonl a.jsonl")[1].fingerprint(packs=True))
    found.add(made("0.5 a.jsonl 0.5 b.jsonl")[1].fingerprint(packs=True))
    assert len(found) == 4
    assert made()[1].fingerprint(packs=True) in found


def test_what_cannot_be_read_is_rejected(made):
    with pytest.raises(ConfigError, match=r"TASK_VALID_DATA=1 v\.jsonl: files to score have no weights"):
        made(**{"finetune.valid_data": "1 v.jsonl"})
    with pytest.raises(ConfigError, match="CHAT_TEMPLATE=alpaca: not one of auto, plain"):
        made(**{"finetune.chat_template": "alpaca"})
