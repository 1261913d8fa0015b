"""`megads detoxify finetune`: what it refuses before anything runs."""

from __future__ import annotations

import pytest

from megads.cli.detoxify.finetune import _own_words, finetune_texts
from tests.cli.detoxify.conftest import one_line


def test_words_of_the_user_are_passed_on():
    line = "texts.jsonl --load run --data-path2 0.3 a 0.7 b --eval-ppl --lr 1e-3 --fp16 --set train.seed=5 --finetune"
    options = finetune_texts.make_context("finetune", line.split()).params
    assert options["valid"] == ("0.3", "a", "0.7", "b")
    assert (options["source"], options["load"]) == ("texts.jsonl", "run")
    words = _own_words(options["pairs"], options["flags"])
    assert words == ["--set", "train.seed=5", "--lr=1e-3", "--fp16", "--finetune"]


WRONG = {
    "finetune": "pass the texts once",
    "finetune texts.jsonl --data-path texts.jsonl": "pass the texts once",
    "finetune none.jsonl --load model": "none.jsonl: no such file; pass JSON lines of `megads detoxify filter`",
    "finetune texts.jsonl": "pass the model that wrote the texts: --load SRC",
    "finetune texts.jsonl --load none": "none: No such file or directory",
    "finetune texts.jsonl --load model": "model: holds no checkpoint",
    "finetune texts.jsonl --load model --set lr": "--set lr: expected SECTION.KEY=VALUE",
    "finetune texts.jsonl --load model --lrr 1": "--lrr",
    "finetune texts.jsonl --load model --lr fast": "fast",
    "finetune texts.jsonl --load model --workers 0": "--workers",
}


@pytest.mark.parametrize("line", list(WRONG))
def test_wrong_words_are_one_line(megads, line):
    one_line(megads(line), WRONG[line])
