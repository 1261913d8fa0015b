import click
import pytest
from click.testing import CliRunner

from megads.cli.evaluate import evaluate
from megads.cli.options.retro import model_changes, retro_options
from megads.errors import MegadsError


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
