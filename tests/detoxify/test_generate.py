"""Texts of a tiny model: seeds, order, prompts, and a command that is killed and run again."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch.distributed as dist

from megads.comm.grid import Grid
from megads.detoxify.generate import Order, continuations, seed_of, write_texts
from megads.errors import ConfigError
from megads.inference.engine import Engine
from megads.inference.sampling import Sampling
from megads.inference.session import Session
from tests.inference.letters import Letters
from tests.inference.theirs import imported, runner_of
from tests.ranks import run_ranks

SAMPLING = Sampling(max_tokens=6, top_p=0.9, seed=11)


def _session(slots=2, grid=Grid(), rank=0, folder=None):  # noqa: B008
    runner = runner_of("llama3", grid, rank, num_slots=slots, folder=folder)
    return Session(runner, runner.groups, Letters(), (52,), "", path="model")


@pytest.fixture(scope="module")
def session():
    return _session()


def _records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_texts_without_prompts_are_what_the_engine_draws_with_their_own_seeds(session, tmp_path):
    write_texts(session, Order([], 20, SAMPLING), tmp_path / "a")
    made = _records(tmp_path / "a")
    assert [each["id"] for each in made] == list(range(20))
    assert all(list(each) == ["text", "all_text", "prompt", "id"] for each in made)
    assert len({each["text"] for each in made}) > 15
    for place in (0, 7, 19):
        engine = Engine(session.runner, tokenizer=session.tokenizer, eos=session.eos)
        request = engine.add([Letters.eod], Sampling(max_tokens=6, top_p=0.9, seed=seed_of(11, place)))
        list(engine.run())
        assert made[place] == {"text": request.text, "all_text": request.text, "prompt": "", "id": place}


def test_a_text_depends_on_its_number_alone(session, tmp_path):
    write_texts(session, Order([], 20, SAMPLING), tmp_path / "a")
    write_texts(session, Order([], 5, SAMPLING), tmp_path / "b")
    write_texts(_session(slots=7), Order([], 20, SAMPLING), tmp_path / "c")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "c").read_bytes()
    assert _records(tmp_path / "a")[:5] == _records(tmp_path / "b")


def test_near_seeds_share_no_text():
    seeds = {seed_of(seed, place) for seed in range(100) for place in range(100)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_every_prompt_is_continued_so_many_times_in_a_row(session, tmp_path):
    write_texts(session, Order(["ab", "Q"], 6, SAMPLING), tmp_path / "a")
    made = _records(tmp_path / "a")
    assert [each["prompt"] for each in made] == ["ab"] * 3 + ["Q"] * 3
    assert all(each["all_text"] == each["prompt"] + each["text"] for each in made)
    assert len({each["text"] for each in made}) > 3


def test_a_prompt_that_does_not_fit_is_found_before_anything_is_generated(session, tmp_path):
    longest = session.runner.context
    with pytest.raises(ConfigError, match=rf"prompt 2: the prompt has {longest} tokens and the model a context of"):
        write_texts(session, Order(["a", "b" * longest, "c"], 300, SAMPLING), tmp_path / "a")
    assert not list(tmp_path.iterdir())


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_a_killed_command_writes_the_same_bytes_when_it_is_run_again(session, tmp_path, blocks, monkeypatch):
    order = Order([], 40, SAMPLING)  # blocks of 16
    write_texts(session, order, tmp_path / "a")
    from megads.detoxify.output_lines import OutputLines

    write, count = OutputLines.write, [0]

    def killed(self, records):
        if count[0] == blocks:
            raise _Killed
        count[0] += 1
        write(self, records)

    with monkeypatch.context() as patch:
        patch.setattr(OutputLines, "write", killed)
        with pytest.raises(_Killed):
            write_texts(session, order, tmp_path / "b")
    part = tmp_path / "b.part"
    part.write_bytes(part.read_bytes() + b'{"text": "half')
    shown = []
    had = write_texts(session, order, tmp_path / "b", progress=lambda done, total: shown.append((done, total)))
    assert had == 16 * blocks
    assert shown[-1] == (40 - had, 40 - had)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert write_texts(session, order, tmp_path / "b") == 40  # nothing is left to do


def test_other_settings_are_not_mixed(session, tmp_path):
    write_texts(session, Order([], 4, SAMPLING), tmp_path / "a")
    with pytest.raises(ConfigError, match=r"--output .*a: already exists, made with seed 11, not 12"):
        write_texts(session, Order([], 4, Sampling(max_tokens=6, top_p=0.9, seed=12)), tmp_path / "a")
    with pytest.raises(ConfigError, match="already exists, made with texts 4, not 5"):
        write_texts(session, Order([], 5, SAMPLING), tmp_path / "a")
    with pytest.raises(ConfigError, match="already exists, made with prompts"):
        write_texts(session, Order(["a"], 4, SAMPLING), tmp_path / "a")
    write_texts(session, Order(["a"], 4, SAMPLING), tmp_path / "a", overwrite=True)
    assert _records(tmp_path / "a")[0]["prompt"] == "a"


def test_texts_of_two_models_of_one_name_are_not_mixed(session, tmp_path):
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"ab")
    named = replace(session, path=str(folder))
    write_texts(named, Order([], 2, SAMPLING), tmp_path / "a")
    (folder / "config.json").write_bytes(b"{}")  # no weights
    write_texts(named, Order([], 2, SAMPLING), tmp_path / "a")
    (folder / "model.safetensors").write_bytes(b"abc")
    with pytest.raises(ConfigError, match="already exists, made with weights"):
        write_texts(named, Order([], 2, SAMPLING), tmp_path / "a")


def _share(tensor, data, target, folder):
    grid, rank = Grid(tensor=tensor, data=data), dist.get_rank()
    write_texts(_session(2, grid, rank, folder), Order(["ab", "Q"], 10, SAMPLING), target)
    wrong = ""
    try:
        write_texts(_session(2, grid, rank, folder), Order(["ab"], 10, SAMPLING), target)
    except ConfigError as error:
        wrong = str(error)
    assert re.search("already exists, made with prompts", wrong)  # on every rank


@pytest.mark.parametrize(("tensor", "data"), [(2, 1), (1, 2)])
def test_ranks_write_what_one_writes(session, tmp_path, tensor, data):
    write_texts(session, Order(["ab", "Q"], 10, SAMPLING), tmp_path / "one")
    run_ranks(2, _share, tensor, data, tmp_path / "two", imported("llama3"))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize(
    ("count", "prompts", "wanted", "expected"),
    [(0, 4, 0, 25), (0, 4, 3, 3), (100, 4, 25, 25), (8, 4, 0, 2), (4, 4, 0, 1)],
)
def test_how_often_a_prompt_is_continued(count, prompts, wanted, expected):
    assert continuations(count, prompts, wanted, 25) == expected


@pytest.mark.parametrize(
    ("count", "wanted", "words"),
    [(7, 0, "--num-samples 7: is not a multiple of the 4 prompts"), (8, 3, "4 prompts with --continuations 3 make 12")],
)
def test_numbers_that_contradict_each_other(count, wanted, words):
    with pytest.raises(ConfigError, match=words):
        continuations(count, 4, wanted, 25)
