"""Complete runs on layouts that are drawn at random give the losses and gradient norms of one rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megads.monitor.metrics import read_metrics
from tests.data.factory import write_dataset
from tests.parity.drawn import DRAWS, END, FAILED, ITERATIONS, SEED, STOP, Drawn, draw
from tests.parity.layouts import Layout
from tests.parity.loops import END_TOKEN, loop_of
from tests.ranks import run_ranks

RUN = {
    "train.train_iters": str(ITERATIONS),
    "train.eval_interval": "2",
    "train.eval_iters": "1",
    "optim.lr_decay_iters": str(ITERATIONS),
    "checkpoint.save_interval": "0",
}


def _trains(layout: Layout, settings: dict[str, str], folder: Path) -> None:
    loop_of(layout, folder, **{**RUN, **settings}).run()


def _numbers(folder: Path) -> tuple[list[float], list[float], list[float]]:
    """Return the losses and gradient norms of all steps, and the validation losses."""
    rows = read_metrics(folder / "metrics.jsonl")
    steps = [row for row in rows if "grad_norm" in row]
    assert [row["iteration"] for row in steps] == list(range(1, ITERATIONS + 1))
    valid = [row["valid_loss"] for row in rows if "valid_loss" in row]
    assert len(valid) == ITERATIONS // 2
    return [row["lm_loss"] for row in steps], [row["grad_norm"] for row in steps], valid


def _write_documents(folder: Path) -> None:
    """Write documents of 1 to 30 tokens, each of which ends with the end token, and there alone."""
    folder.mkdir()
    lengths = [*range(1, 31)] * 3
    prefix = write_dataset(folder, lengths)
    tokens = np.memmap(f"{prefix}.bin", dtype=np.uint16, mode="r+")
    tokens[tokens == END] = END + 1
    tokens[np.cumsum(lengths) - 1] = END
    tokens.flush()


def equals_one_rank(drawn: Drawn, folder: Path) -> None:
    """Train ``drawn`` and the same run on one rank, and compare them."""
    note = f"PARITY_SEED={SEED}: {drawn!r}"
    assert END == END_TOKEN
    _write_documents(folder / "data")
    run_ranks(1, _trains, Layout("llama", zero=0), drawn.settings, folder / "one")
    half = {"train.exit_interval": str(STOP)} if drawn.second else {}
    run_ranks(drawn.ranks, _trains, drawn.first, {**drawn.settings, **half}, folder / "many")
    if drawn.second:
        run_ranks(drawn.ranks, _trains, drawn.second, drawn.settings, folder / "many")
    (losses, norms, valid), ours = _numbers(folder / "one"), _numbers(folder / "many")
    assert ours[0] == pytest.approx(losses, rel=1e-5), note
    assert ours[1] == pytest.approx(norms, rel=1e-4), note
    assert ours[2] == pytest.approx(valid, rel=1e-5), note


@pytest.mark.dist
@pytest.mark.parametrize("drawn", [*FAILED, *range(DRAWS)], ids=str)
def test_a_drawn_run_trains_like_one_rank(drawn, tmp_path):
    """Those that once failed, and new ones, given here by their number."""
    if isinstance(drawn, int):
        drawn = draw(SEED, drawn, ranks=2 if drawn % 2 else 4)
    equals_one_rank(drawn, tmp_path)


DROPS = {"model.family": "gpt", "train.micro_batch": "1", "data.reset_attention_mask": "true"}


@pytest.mark.dist
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Layout(dp=2, zero=2), None),
        (Layout(pp=2, zero=1), Layout(dp=2, zero=3, more={"recompute.granularity": "full"})),
    ],
    ids=["dp2", "pp2-then-dp2"],
)
def test_dropout_is_the_same_on_every_data_rank_and_stage(first, second, tmp_path):
    """Also where a run resumes with other degrees: the loss of a step does not show by which ranks it was drawn."""
    equals_one_rank(Drawn({**DROPS, "train.global_batch": "8"}, first, second), tmp_path)
