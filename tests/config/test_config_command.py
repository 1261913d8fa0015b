"""``megads config``."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from megads.cli.config import config, parse_pairs
from megads.config.flags import flags
from megads.config.resolve import resolve, settings
from megads.config.tree import value_of
from megads.errors import ConfigError


def _output(*args: str, **env: str) -> str:
    result = CliRunner().invoke(config, list(args), env={"MACHINE": "generic", **env}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_table_shows_value_variable_and_origin():
    lines = {line.split()[0]: line.split() for line in _output("--preset", "7B", TP="2").splitlines()}
    assert lines["parallel.tensor"] == ["parallel.tensor", "2", "TP", "env", "TP"]
    assert lines["model.seq_length"] == ["model.seq_length", "4096", "tokens", "SEQ", "default"]
    assert lines["train.grad_acc_steps"] == ["train.grad_acc_steps", "(derived)", "GRAD_ACC_STEPS"]
    assert {name for name, _ in settings()} < set(lines)


def test_table_is_aligned():
    rows = _output("--preset", "7B").splitlines()[:-1]
    column = rows[0].index("variable")
    assert all(row[column - 1] == " " and row[column] != " " for row in rows)


def test_json_has_everything():
    rows = json.loads(_output("--json", "--set", "optim.lr=1e-4"))
    assert list(rows) == [name for name, _ in settings()]
    assert rows["optim.lr"] == {
        "value": 1e-4,
        "origin": "cli --set optim.lr",
        "env": "LR",
        "unit": "",
        "help": "peak learning rate",
    }


def test_shell_lines_reproduce_the_settings():
    text = _output("--preset", "gpt-345M", "--shell", RUN_NAME="it's; rm -rf $HOME")
    env = dict(word.split("=", 1) for word in shlex.split(text) if word != "export")
    again = resolve(env=env, machine="generic").run
    first = resolve("gpt-345M", env={"RUN_NAME": "it's; rm -rf $HOME"}, machine="generic").run
    for name, _ in settings():
        assert value_of(again, name) == value_of(first, name), name


def test_presets_are_listed_with_their_names():
    assert "7B               AuroraGPT-7B, " in _output("--presets")


def test_set_wants_a_value_and_one_only():
    assert parse_pairs(("a.b=1", "a.b=1", "c=")) == {"a.b": "1", "c": ""}
    with pytest.raises(ConfigError, match="--set tensor: must have the form"):
        parse_pairs(("tensor",))
    with pytest.raises(ConfigError, match="--set a=1 and --set a=2 differ"):
        parse_pairs(("a=1", "a=2"))


def test_settings_need_no_torch():
    code = (
        "import sys; import megads.cli.config; assert 'pydantic' not in sys.modules; "
        "import megads.config.checks, megads.config.files, megads.config.memory; "
        "assert not {'torch', 'deepspeed', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_options_of_other_toolkits_are_settings():
    rows = json.loads(_output("--json", "--sequence-parallel", "--zero-stage=2", "--DDP-impl", "torch"))
    told = {
        name: (rows[name]["value"], rows[name]["origin"]) for name in rows if rows[name]["origin"].startswith("cli")
    }
    assert told == {
        "parallel.scatter_norms": (True, "cli --sequence-parallel"),
        "parallel.zero_stage": (2, "cli --zero-stage"),
        "parallel.ddp_impl": ("torch", "cli --DDP-impl"),
    }


def test_options_of_other_toolkits_are_listed():
    lines = _output("--flags").splitlines()
    assert len(lines) == len(flags())
    words = [line.split(maxsplit=1 + line.startswith("--zero-stage ")) for line in lines]
    assert ["--zero-stage", "V", "ZERO_STAGE=V"] in words
    assert ["--distribute-saved-activations", "RECOMPUTE_WITH=deepspeed, PARTITION_ACTIVATIONS=1"] in words


def test_help_stays_one_screen_and_needs_no_settings():
    code = (
        "import sys\nfrom megads.cli import main\n"
        "try:\n    main([{!r}, '--help'])\nfinally:\n    assert 'pydantic' not in sys.modules"
    )
    for command in ("train", "config"):
        done = subprocess.run([sys.executable, "-c", code.format(command)], check=True, capture_output=True, text=True)
        assert "`megads config --flags` lists them" in " ".join(done.stdout.replace("megads\n", "megads ").split())
        assert "--zero-stage" not in done.stdout
        assert done.stdout.count("\n") < 30
