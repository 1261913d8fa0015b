import click
import pytest
from click.testing import CliRunner

from megads.cli.evaluate import evaluate
from megads.cli.options.retro import model_changes, retrieval_of, retro_options
from megads.comm.grid import Grid
from megads.errors import MegadsError
from megads.inference.session import Session
from tests.inference.letters import Letters
from tests.inference.theirs import runner_of


def test_options_change_the_model():
    found = {}

    @click.command()
    @retro_options
    def command(**options: object) -> None:
        found.update(model_changes(options))

    assert CliRunner().invoke(command, []).exit_code == 0
    assert found == {}
    CliRunner().invoke(command, ["--retro-num-neighbors", "3", "--retro-attention-gate", "0"])
    assert found == {"retro_num_neighbors": 3, "retro_attention_gate": 0.0}
    assert CliRunner().invoke(command, ["--retro-num-neighbors", "0"]).exit_code == 2
    assert CliRunner().invoke(command, ["--retro-attention-gate", "1.5"]).exit_code == 2


def test_they_belong_to_questions_where_texts_are_scored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(evaluate, ["run", "--data", "x", "--retro-num-neighbors", "3"])
    assert isinstance(done.exception, MegadsError)
    with pytest.raises(MegadsError, match="--retro-num-neighbors: needs questions, --qa FILE"):
        raise done.exception


def test_no_project_looks_up_nothing_and_others_look_at_none():
    runner = runner_of("llama3", Grid(), 0, num_slots=1)
    session = Session(runner, runner.groups, Letters(), (52,), "")
    assert retrieval_of(session, {"retro_project_dir": None}) is None
    with pytest.raises(MegadsError, match="--retro-project-dir p: a model of the family llama looks at no neighbours"):
        retrieval_of(session, {"retro_project_dir": "p"})
