"""Checkpoints that were skipped at a start stay under another name; a decoder gives Retro its weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.checkpoint.format.folders import checkpoint_name, list_checkpoints, remove_unfinished, surplus
from megads.train.resume import _put_aside
from tests.ranks import run_ranks


def test_what_was_damaged_is_neither_found_nor_removed(tmp_path):
    made = [tmp_path / checkpoint_name(step) for step in (50, 100, 150)]
    for path in made:
        path.mkdir()
        (path / "weights").write_text(path.name)
    _put_aside(made[1:])
    assert list_checkpoints(tmp_path) == made[:1]
    again = tmp_path / checkpoint_name(100)
    again.mkdir()
    assert surplus(tmp_path, again, keep=1, keep_every=0) == made[:1]
    remove_unfinished(tmp_path)
    kept = [path.with_name(path.name + ".damaged") / "weights" for path in made[1:]]
    assert [path.read_text() for path in kept] == [path.name for path in made[1:]]


def test_one_that_is_damaged_again_replaces_nothing(tmp_path):
    for _ in range(3):
        path = tmp_path / checkpoint_name(50)
        path.mkdir()
        (path / "weights").write_text("w")
        _put_aside([path])
    names = ["iter_0000050.damaged", "iter_0000050.damaged.1", "iter_0000050.damaged.2"]
    assert sorted(each.name for each in tmp_path.iterdir()) == names


def _gives_its_weights(folder: Path) -> None:
    import torch

    from megads.checkpoint.resume.progress import Progress
    from megads.device.vendor import vendor
    from megads.engine.build import make_engine
    from megads.families.retro import is_of_retriever
    from megads.train.resume import resume
    from megads.train.setup import Training
    from tests.parity.checkpoints import save, whole_tensors
    from tests.parity.layouts import Layout, engine_of, train_on
    from tests.ranks import groups_of

    sizes = {"model.num_layers": "9"}
    gpt, run, groups = engine_of(Layout("gpt", dp=2, zero=1).on("native"), **sizes)
    train_on(gpt, run, groups, range(1))
    save(gpt, run, groups, folder / "gpt", Progress(1))
    trained = whole_tensors(gpt, groups)
    layout = Layout("retro", tp=2, zero=1, more={**sizes, "checkpoint.load": str(folder / "gpt")}).on("native")
    run, groups = layout.run(), groups_of(**layout.degrees)
    engine = make_engine(run, groups, torch.device("cpu"), None)
    new = whole_tensors(engine, groups)
    cpu = vendor({"MEGADS_DEVICE": "cpu"})
    training = Training(run, folder / "retro", groups, cpu, torch.device("cpu"), engine, {})
    resume(training)
    assert training.progress == Progress()
    found = whole_tensors(engine, groups)
    assert {name for name in found if is_of_retriever(name)} == found.keys() - trained.keys()
    assert {name.split(".")[1] for name in found.keys() - trained.keys()} == {"5", "8"}
    for name, kinds in found.items():
        wanted = (trained if name in trained else new)[name]["weight"]
        assert torch.equal(kinds["weight"], wanted), name
        assert not kinds["exp_avg"].any(), name
    train_on(engine, run, groups, range(1))
    save(engine, run, groups, folder / "retro", Progress(1))


@pytest.mark.dist
def test_a_decoder_gives_retro_its_weights_and_the_rest_is_what_the_seed_drew(tmp_path):
    run_ranks(2, _gives_its_weights, tmp_path)
