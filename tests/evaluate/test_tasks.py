"""Numbers of tasks equal an independent implementation of their formulas, on transformers' own model."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from megads.comm.grid import Grid
from megads.data.formats.token_file import open_dataset
from megads.data.tokenizers.types.null import NullTokenizer
from megads.errors import ConfigError, DataError
from megads.evaluate.score import score
from megads.evaluate.tasks import Options, make_task
from tests.checkpoint.convert.huggingface.models import their_module
from tests.data.factory import write_dataset
from tests.inference.letters import LETTERS, Letters
from tests.inference.theirs import imported, runner_of
from tests.ranks import run_ranks

CONTEXT = 12
ONE = Grid()
LAYOUTS = {
    "tp2": Grid(tensor=2),
    "pp2": Grid(pipe=2),
    "dp3": Grid(data=3),
    "sp2-pp2": Grid(seq=2, pipe=2),
    "tp2-dp2": Grid(tensor=2, data=2),
}


def _words(count: int, seed: int = 0) -> str:
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 6, (count,), generator=draw).tolist()
    return " ".join(
        "".join(LETTERS[place] for place in torch.randint(0, 26, (size,), generator=draw)) for size in sizes
    )


@cache
def _module() -> Any:
    return their_module("llama3")


def _their_scores(tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return _module()(torch.tensor([tokens])).logits[0].double().log_softmax(dim=-1)


def _result(path: Any, task: str, grid: Grid = ONE, rank: int = 0, folder: Any = None, **more: Any) -> dict[str, float]:
    made = make_task(task, path, Letters(), Options(CONTEXT, **more))
    return made.result(score(runner_of("llama3", grid, rank, folder=folder), made.windows, 3))


@pytest.mark.parametrize("stride", [1, 5, 12])
def test_wikitext_is_the_formula_of_megatron(tmp_path, stride):
    path = tmp_path / "text.txt"
    path.write_text(_words(30))
    tokens, words = Letters().encode(path.read_text()), 30
    # Every window of CONTEXT + 1 tokens as Megatron's data set cuts them; those behind the end count nothing.
    total, targets = 0.0, max(len(tokens) - 1 - stride, 0)
    for number in range(max(math.ceil(targets / stride) + 1, 1)):
        part = tokens[number * stride : number * stride + CONTEXT + 1]
        scores = _their_scores(part[:-1]) if len(part) > 1 else []
        for place, token in enumerate(part[1:]):
            if number == 0 or place >= CONTEXT - stride:
                total -= float(scores[place, token])
    loss, ratio = total / (len(tokens) - 1), (len(tokens) - 1) / (words - 1)
    wanted = {
        "loss": loss,
        "ppl": math.exp(loss),
        "adjusted_ppl": math.exp(min(20, loss * ratio)),
        "token_ratio": ratio,
    }
    assert _result(path, "WIKITEXT103", stride=stride) == pytest.approx(wanted, rel=1e-5)


def _lambada_file(tmp_path: Any) -> Any:
    path = tmp_path / "lambada.jsonl"
    path.write_text("".join(json.dumps({"text": _words(4, seed)}) + "\n" for seed in range(1, 20)))
    return path


@pytest.mark.parametrize("is_strict", [True, False])
def test_lambada_is_the_formula_of_megatron(tmp_path, is_strict):
    path = _lambada_file(tmp_path)
    # Random weights are never right: the last word is what the model says, in every other text.
    lines = [json.loads(line)["text"] for line in path.read_text().splitlines()]
    right = 0
    with path.open("w") as file:
        for number, text in enumerate(lines):
            before = Letters().encode(text)
            if number % 2:
                token = int(_their_scores(before[-CONTEXT:])[-1].argmax())
                text += LETTERS[token] if not is_strict else ""
            file.write(json.dumps({"text": text}) + "\n")
    for line in path.read_text().splitlines():
        text = json.loads(line)["text"]
        word = text.split()[-1]
        start = text.rfind(word)
        target = Letters().encode(" " + word) if is_strict else Letters().encode(text)[-1:]
        before = Letters().encode(text[:start].strip()) if is_strict else Letters().encode(text)[:-1]
        whole = [*before, *target][-CONTEXT - 1 :]
        found = _their_scores(whole[:-1]).argmax(dim=-1).tolist()
        right += found[-len(target) :] == target
    result = _result(path, "lambada", is_strict=is_strict)
    assert (result["correct"], result["total"]) == (right, 19)
    assert result["accuracy"] == right / 19
    assert is_strict or right >= 5


def test_loss_of_texts_and_bits_per_byte(tmp_path):
    path = tmp_path / "texts.jsonl"
    texts = [_words(count, count) for count in (1, 3, 9)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    nats = count = 0
    for text in texts:
        tokens = [Letters.eod, *Letters().encode(text)]
        count += len(tokens) - 1
        for first in range(1, len(tokens), CONTEXT):
            end = min(first + CONTEXT, len(tokens))
            begin = max(0, end - CONTEXT - 1)
            scores = _their_scores(tokens[begin : end - 1])
            nats -= sum(float(scores[place - begin - 1, tokens[place]]) for place in range(first, end))
    size = sum(map(len, texts))
    wanted = {"loss": nats / count, "ppl": math.exp(nats / count), "bits_per_byte": nats / math.log(2) / size}
    result = _result(path, "loss")
    assert {name: result[name] for name in wanted} == pytest.approx(wanted, rel=1e-5)
    assert (result["tokens"], result["bytes"]) == (count, size)


def _check(path: Any, grid: Grid, folder: Any, wanted: dict[str, float]) -> None:
    import torch.distributed as dist

    assert _result(path, "loss", grid, dist.get_rank(), folder) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(("layout", "texts"), [("dp3", 1), ("sp2-pp2", 1), ("dp3", 2)])
def test_fewer_windows_than_ranks(tmp_path, layout, texts):
    path = tmp_path / "few.jsonl"
    path.write_text("".join(json.dumps({"text": _words(place + 1)[:2]}) + "\n" for place in range(texts)))
    grid = LAYOUTS[layout]
    run_ranks(grid.world_size, _check, path, grid, imported("llama3"), _result(path, "loss"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_equals_one_rank(tmp_path, layout):
    path = _lambada_file(tmp_path)
    grid = LAYOUTS[layout]
    run_ranks(grid.world_size, _check, path, grid, imported("llama3"), _result(path, "loss"))


def test_token_files_are_samples_of_the_context(tmp_path):
    prefix = write_dataset(tmp_path, [7, 30, 3], vocab=52)
    tokens = [token for document in range(3) for token in open_dataset(prefix).get(document).tolist()]
    nats = 0.0
    for first in range(0, len(tokens) - 1, CONTEXT):
        part = tokens[first : first + CONTEXT + 1]
        scores = _their_scores(part[:-1])
        nats -= sum(float(scores[place, token]) for place, token in enumerate(part[1:]))
    # Letters give no text back with the ids of a Z, which is 52; here is none.
    wanted = {"loss": nats / 39, "bits_per_byte": nats / math.log(2) / 40}
    for path in (prefix, f"{prefix}.bin", f"{prefix}.idx"):
        result = _result(Path(path), "loss")
        assert {name: result[name] for name in wanted} == pytest.approx(wanted, rel=1e-5)
        assert (result["tokens"], result["samples"], result["bytes"]) == (39, 4, 40)
    part = make_task("loss", Path(prefix), Letters(), Options(CONTEXT, documents=lambda n: range(1, n)))
    assert part.windows.tokens.tolist() == tokens[7:]


@pytest.mark.parametrize(
    ("lengths", "vocab", "options", "words"),
    [
        ([1], 52, {}, "data: has 1 tokens in 1 documents; 2 are needed"),
        ([5, 5], 52, {"documents": lambda n: range(0)}, "data: has 0 tokens in 0 documents"),
        ([50], 500, {"vocab_size": 53}, "has token .*, but the model knows 53"),
    ],
)
def test_token_files_that_cannot_be_scored(tmp_path, lengths, vocab, options, words):
    prefix = write_dataset(tmp_path, lengths, vocab=vocab)
    with pytest.raises(DataError, match=words):
        make_task("loss", Path(prefix), NullTokenizer(vocab), Options(CONTEXT, **options))


def test_bits_per_byte_need_a_tokenizer_that_gives_the_text_back(tmp_path):
    prefix = Path(write_dataset(tmp_path, [20], vocab=52))
    assert "bits per byte" not in make_task("loss", prefix, NullTokenizer(53), Options(CONTEXT)).line

    class Lower(Letters):
        def decode(self, ids):
            return super().decode(ids).lower()

    assert "bits per byte" not in make_task("loss", prefix, Lower(), Options(CONTEXT)).line
    assert "bits per byte" in make_task("loss", prefix, Letters(), Options(CONTEXT)).line


@pytest.mark.parametrize(
    ("text", "task", "words"),
    [
        ("", "loss", "has no text"),
        ("{", "lambada", "a.jsonl:1: is not JSON"),
        ('{"text": ""}', "lambada", 'a.jsonl:1: expected an object with "text"'),
        ('{"text": "a"}', "lambada", "a.jsonl:1: has nothing before its last word"),
        ("a", "wikitext103", "is too short to evaluate"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, text, task, words):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=words):
        make_task(task, path, Letters(), Options(CONTEXT))


def test_names_and_options_that_do_not_exist(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a b c")
    with pytest.raises(ConfigError, match="--task race: no such task; the tasks are wikitext103, lambada, loss"):
        make_task("race", path, Letters(), Options(CONTEXT))
    with pytest.raises(ConfigError, match="--overlapping-eval 13: use 1 to 12, the context"):
        make_task("wikitext103", path, Letters(), Options(CONTEXT, stride=13))
    with pytest.raises(DataError, match="No such file"):
        make_task("loss", tmp_path / "none", Letters(), Options(CONTEXT))


def test_files_from_other_systems_and_words_longer_than_the_context(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes('\ufeff{"text": "ab cd"}\r\n\r\n{"text": "a b"}\r\n'.encode())
    assert len(make_task("lambada", path, Letters(), Options(CONTEXT)).windows) == 2
    with pytest.raises(DataError, match=r"a.jsonl:1: its last word has 3 tokens, the context 2"):
        make_task("lambada", path, Letters(), Options(2, is_strict=True))
