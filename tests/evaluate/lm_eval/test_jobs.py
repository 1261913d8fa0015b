"""What rank 0 has all ranks do, in every layout; without lm-eval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from megads.errors import ConfigError, MegadsError
from megads.evaluate.lm_eval import jobs
from megads.evaluate.lm_eval.jobs import Choosing, Generation, Ranks, Scoring, follow, scoring_jobs
from megads.inference.sampling import Sampling
from tests.evaluate.lm_eval.tiny import model_folder, session_of
from tests.ranks import groups_of, run_ranks

ROWS = [([1, 2, 3, 4], 2), ([1, 2, 9], 1), ([5, 6, 7, 8, 9, 10], 5), ([1, 2, 11], 1), ([3, 1], 1), ([1, 2, 9], 1)]
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [10, 11]]
SAMPLINGS = [Sampling(max_tokens=6, temperature=0), *(Sampling(max_tokens=5, seed=seed) for seed in (1, 2, 3))]


def _answers(ranks: Ranks) -> dict[str, Any]:
    found: dict[int, tuple[float, bool]] = {}
    for job, places in scoring_jobs(ROWS, 2, 3):
        found |= dict(zip(places, ranks.run(job), strict=True))
    generated = ranks.run(Generation(PROMPTS, SAMPLINGS))
    return {"scores": [found[place][0] for place in range(len(ROWS))], "generated": generated}


def test_a_choice_of_one_token_equals_its_score_as_a_row():
    session = session_of(model_folder("llama3"))
    alone = Scoring([row for row, _ in ROWS], [scored for _, scored in ROWS], 4).run(session)
    shared = _answers(Ranks(session))["scores"]
    assert shared == pytest.approx([logprob for logprob, _ in alone], rel=1e-6)
    greedy = [Generation([row[:-1]], [Sampling(max_tokens=1, temperature=0)]).run(session)[0] for row, _ in ROWS]
    flags = Choosing([row[:-1] for row, _ in ROWS], greedy, 4).run(session)
    assert all(is_greedy for _, is_greedy in flags)


def test_rows_with_the_same_text_before_one_token_run_once():
    kinds = [(type(job), len(job.rows), places) for job, places in scoring_jobs(ROWS, 2, 3)]
    assert kinds == [(Choosing, 2, [1, 3, 5, 4]), (Scoring, 2, [2, 0])]


def test_what_ended_a_text_is_no_part_of_it():
    session = session_of(model_folder("llama3"))
    (free,) = Generation([[1, 2]], [Sampling(max_tokens=6, temperature=0, ignore_eos=True)]).run(session)
    assert len(free) == 6
    ended = Sampling(max_tokens=6, temperature=0, stop_token_ids=(free[3],), ignore_eos=True)
    first = free.index(free[3])
    assert Generation([[1, 2]], [ended]).run(session) == [free[:first]]


def _check_end(folder: Path, error: MegadsError | None) -> None:
    session = session_of(folder, groups_of(data=2))
    if dist.get_rank() == 0:
        ranks = Ranks(session)
        ranks.close(error)
        ranks.close()
    elif error is None:
        follow(session)
    else:
        with pytest.raises(ConfigError, match="no such task"):
            follow(session)


@pytest.mark.dist
@pytest.mark.parametrize("error", [None, ConfigError("no such task")])
def test_all_ranks_end_as_rank_0(error):
    run_ranks(2, _check_end, model_folder("llama3"), error)


def _check(degrees: dict[str, int], folder: Path, wanted: dict[str, Any]) -> None:
    session = session_of(folder, groups_of(**degrees))
    if dist.get_rank():
        follow(session)
        return
    jobs.HEARTBEAT_S, before = 0.01, jobs.HEARTBEAT_S
    ranks = Ranks(session)
    try:
        found = _answers(ranks)
    finally:
        jobs.HEARTBEAT_S = before
        ranks.close()
    assert found["scores"] == pytest.approx(wanted["scores"], rel=1e-5)
    assert found["generated"] == wanted["generated"]


@pytest.mark.dist
@pytest.mark.parametrize(
    "degrees", [{"tensor": 2}, {"pipe": 2}, {"data": 2}, {"tensor": 2, "pipe": 2}, {"tensor": 2, "data": 2}], ids=str
)
def test_every_layout_equals_one_rank(degrees):
    folder = model_folder("llama3")
    size = 2 ** len(degrees)
    run_ranks(size, _check, degrees, folder, _answers(Ranks(session_of(folder))))
