"""Scores and losses of rows against the logits of the same engine, gathered from both ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from megads.engine.base import Labelled
from tests.engine.plain import ENGINES, let_fp16_run
from tests.parity.layouts import VOCAB, Layout
from tests.ranks import groups_of, run_ranks

LAYOUT = Layout("gpt-dropout", tp=2)


def _scores_are_those_of_the_logits(layout: Layout) -> None:
    let_fp16_run()
    from megads.engine.build import make_engine

    groups = groups_of(**layout.degrees)
    engine = make_engine(layout.run(), groups, torch.device("cpu"))
    batches = [torch.randint(0, VOCAB, (2, 17), generator=torch.Generator().manual_seed(each)) for each in (1, 2, 3)]
    rows = [Labelled(batch[:, :-1], batch[:, 1:]) for batch in batches]
    whole = []
    with engine.surroundings(), torch.no_grad():
        engine.module.eval()
        for part in engine.split.labelled(rows):
            logits = engine.eval_part(part, lambda logits, _: logits)
            parts = [torch.empty_like(logits) for _ in range(2)]
            dist.all_gather(parts, logits.contiguous())
            whole.append(torch.cat(parts, dim=-1)[..., :VOCAB].double().log_softmax(dim=-1))

    # Labels are right in every third place, and do not count in every fourth.
    places = torch.arange(16)
    labels = [
        torch.where(places % 3 == 0, found.argmax(-1), row.labels) for found, row in zip(whole, rows, strict=True)
    ]
    labels = [each.masked_fill(places % 4 == 0, -100) for each in labels]
    expected = []
    for found, label in zip(whole, labels, strict=True):
        counted = label >= 0
        scores = found.gather(-1, label.clamp(min=0).unsqueeze(-1)).squeeze(-1).masked_fill(~counted, 0.0)
        wrong = ((found.argmax(-1) != label) & counted).sum(dim=1)
        expected.append(torch.stack([scores.sum(dim=1), wrong.double()], dim=1))
    labelled = [Labelled(row.tokens, label) for row, label in zip(rows, labels, strict=True)]
    torch.testing.assert_close(engine.eval_scores(labelled), torch.cat(expected), rtol=1e-6, atol=0)

    losses = engine.eval_losses(batches)
    assert losses[:, 1].tolist() == [16.0] * 6
    torch.testing.assert_close(losses[:, 0].double(), -engine.eval_scores(rows)[:, 0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_scores_are_those_of_the_logits(engine):
    run_ranks(LAYOUT.ranks, _scores_are_those_of_the_logits, LAYOUT.on(engine))
