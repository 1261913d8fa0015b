"""What EVAL_TASKS and its interval need of each other, and of the model."""

from __future__ import annotations

import pytest

from megads.config.derive import derive
from megads.config.rules.tasks import _tasks
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError
from megads.plan.remarks import remarks
from tests.config.advice import check


def _run(**env: str):
    asked = resolve("tiny", env={"TRAIN_ITERS": "10", **env}, machine="generic")
    run = derive(asked, num_hosts=1, ranks_per_host=1, vocab_size=500).run
    check(run, 1)
    return run


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (
            {"EVAL_TASKS_INTERVAL": "5"},
            "EVAL_TASKS_INTERVAL=5 and no EVAL_TASKS: .*; use EVAL_TASKS_INTERVAL=0 or name",
        ),
        ({"EVAL_TASKS": "wikitext103:a", "OVERLAPPING_EVAL": "5000"}, "is more than the context of SEQ=.*use OVERLAP"),
        ({"EVAL_TASKS": "a.txt"}, "expected TASK:FILE"),
    ],
)
def test_what_cannot_be_scored_is_refused(env, words):
    with pytest.raises(ConfigError, match=words):
        _run(**env)


def test_an_interval_that_never_comes_is_remarked():
    late = _run(EVAL_TASKS="loss:a", EVAL_TASKS_INTERVAL="11")
    assert any("scored at the end only" in line for line in remarks(late, 1))
    for run in (
        _run(EVAL_TASKS="loss:a", EVAL_TASKS_INTERVAL="10"),
        _run(EVAL_TASKS="loss:a", OVERLAPPING_EVAL="5000"),
    ):
        assert not any("TASKS" in line for line in remarks(run, 1))


@pytest.mark.parametrize("env", [{"TASK": "MNLI", "TASK_TRAIN_DATA": "a"}, {"MODEL_FAMILY": "bert"}])
def test_only_models_that_predict_a_text_are_scored(env):
    asked = resolve("tiny", env={"TRAIN_ITERS": "10", "EVAL_TASKS": "loss:a", **env}, machine="generic")
    (problem,) = _tasks(asked.run, 1)
    assert "does not predict a text from its beginning" in problem.text
