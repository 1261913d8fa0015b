"""`megads detoxify generate`: what it refuses before it loads a model, and its defaults."""

from __future__ import annotations

import pytest

from megads.cli.detoxify.generate import _order, _target, generate_texts
from megads.cli.options.request import absolute
from tests.cli.detoxify.conftest import one_line


def _options(line):
    return generate_texts.make_context("generate", line.split()).params


def test_defaults_without_and_with_prompts(folder):
    order = _order(_options("run --num-samples 7"))
    assert (order.count, order.prompts) == (7, [])
    assert (order.sampling.max_tokens, order.sampling.top_p, order.sampling.temperature) == (1000, 0.9, 1.0)
    order = _order(_options("run --prompts prompts.jsonl"))
    assert (order.count, order.prompts, order.sampling.max_tokens) == (50, ["a", "a"], 20)


def test_command_lines_of_megatron(folder):
    line = "--num-layers 2 --micro-batch-size 150 --load run --num-samples 9 --genfile model/1 --top_p 0.8 "
    options = _options(line + "--out-seq-length 30 --max-tokens-to-oom 1200000 --seed 5 --temperature 1.0")
    assert (options["batch"], options["load"], _target(options)) == (150, "run", absolute("model/1"))
    order = _order(options)
    assert (order.count, order.sampling.max_tokens, order.sampling.top_p, order.sampling.seed) == (9, 30, 0.8, 5)
    options = _options("--load run --sample-input-file prompts.jsonl --num-samples 2 --top_p 0 --out-seq-length 20")
    assert _target(options) == absolute("prompts.jsonl.out")
    order = _order(options)
    assert (order.count, order.sampling.top_p) == (2, 1.0)  # each prompt once: the file repeats them


WRONG = {
    "generate": "pass the model once",
    "generate run --load run": "pass the model once",
    "generate run": "pass --output FILE",
    "generate run --output x": "pass --num-samples N for texts without a prompt, or --prompts FILE",
    "generate run --output x --num-samples 3 --continuations 2": "--continuations 2 needs --prompts FILE",
    "generate run --prompts none": "none: no such file",
    "generate run --prompts texts.jsonl": "",
    "generate run --prompts bad.jsonl": "bad.jsonl:1: expected",
    "generate run --prompts prompts.jsonl --num-samples 3": "is not a multiple of the 2 prompts",
    "generate run --output x --num-samples 3 --top-p 2": "top_p=2 is out of range",
    "generate run --output x --num-samples 3 --temperature -1": "temperature=-1 is out of range",
    "generate run --output x --num-samples 3 --fp16 --bf16": "two values, fp16 and bf16",
    "generate run --output no/where --num-samples 3": "its folder does not exist",
    "generate run --output model --num-samples 3": "model: is a folder",
    "generate none --output x --num-samples 3": "none: No such file or directory",
}


@pytest.mark.parametrize("line", list(WRONG))
def test_wrong_words_are_one_line(megads, line):
    one_line(megads(line), WRONG[line])
