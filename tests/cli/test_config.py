"""``megads config``."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from megads.cli.config import config
from megads.config.derive import derive
from megads.config.engine_choice import table
from megads.config.reference import settings_page
from megads.config.run_folder import save_config
from megads.config.sources.flags import flags
from megads.config.sources.resolve import resolve, settings
from megads.config.tree import value_of
from megads.errors import ConfigError


def _output(*args: str, **env: str) -> str:
    # pytest-xdist sets COLUMNS in its workers.
    given = {"MACHINE": "generic", "COLUMNS": None, **env}
    result = CliRunner().invoke(config, list(args), env=given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_table_shows_value_variable_and_origin():
    lines = {line.split()[0]: line.split() for line in _output("--preset", "7B", TP="2").splitlines()}
    assert lines["parallel.tensor"] == ["parallel.tensor", "2", "TP", "env", "TP"]
    assert lines["model.seq_length"] == ["model.seq_length", "4096", "tokens", "SEQ", "default"]
    derived = ["train.grad_acc_steps", "1", "GRAD_ACC_STEPS", "derived", "1", "unless", "GLOBAL_BATCH", "is", "given"]
    assert lines["train.grad_acc_steps"] == derived
    assert {name for name, _ in settings()} < set(lines)


def test_table_is_aligned():
    rows = _output("--preset", "7B").splitlines()
    column = rows[0].index("variable")
    assert all(row[column - 1] == " " and row[column] != " " for row in rows)


def test_what_can_not_be_derived_here_is_said_to_be():
    text = _output("--preset", "7B", TP="3", NGPU_PER_HOST="2")
    assert "train.grad_acc_steps" in text
    assert "(derived) values follow from the others" in text


def test_a_row_fits_a_narrow_terminal():
    for line in _output("--preset", "7B", COLUMNS="80", RUN_DIR="x" * 200).splitlines():
        assert len(line) <= 80, line


@pytest.mark.parametrize("word", ["TP", "parallel.tensor", "--tensor-model-parallel-size"])
def test_one_setting_is_explained_by_any_of_its_names(word):
    lines = _output("--preset", "7B", "--", word, TP="2").splitlines()
    assert lines[0] == "TP  parallel.tensor"
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[2:]}
    assert rows["value"] == "2  (env TP)"
    assert rows["values"] == "int > 0"
    assert rows["default"] == "1"
    assert "--tensor-model-parallel-size V" in rows["options"]


def test_an_explanation_has_choices_aliases_and_switches():
    text = _output("ZERO_STAGE")
    assert "values   0, 1, 2, 3" in text
    assert "USE_DISTRIBUTED_OPTIMIZER=1 (1)" in text
    assert "aliases  NHEADS, NUM_HEADS" in _output("HEADS")
    assert "bfloat16 for bf16" in _output("DTYPE")


def test_words_filter_and_show_the_help():
    lines = _output("warm-up").splitlines()
    assert any(line.startswith("optim.lr_warmup_frac") for line in lines)
    assert "    warm-up as a fraction of the decay" in lines
    assert not any(line.startswith("model.") for line in lines)
    with pytest.raises(
        ConfigError, match=r"no setting has 'ZERO_STAG3' in its name or meaning; did you mean ZERO_STAGE\?"
    ):
        CliRunner().invoke(config, ["ZERO_STAG3"], env={"MACHINE": "generic"}, catch_exceptions=False)


def test_changed_leaves_out_defaults():
    lines = _output("--preset", "2B", "--changed", TP="2").splitlines()
    names = {line.split()[0] for line in lines[1:]}
    assert {"preset", "parallel.tensor", "model.hidden_size"} <= names
    assert "optim.clip_grad" not in names


def test_diff_compares_runs_and_the_settings_here(tmp_path):
    for name, rate in (("a", "1e-4"), ("b", "3e-4")):
        derived = derive(
            resolve("tiny", env={"LR": rate}, machine="generic"), num_hosts=1, ranks_per_host=1, vocab_size=99
        )
        (tmp_path / name).mkdir()
        save_config(derived.run, derived.origins, tmp_path / name / "config.yaml")
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert _output("--diff", a, b) == "LR  0.0001 -> 0.0003\n"
    assert _output("--diff", a, a) == f"{a} and {a} have the same settings\n"
    assert "LR  0.0001 -> 0.01\n" in _output("--preset", "tiny", "--diff", a, "now", LR="0.01")
    with pytest.raises(ConfigError, match=r"config.yaml: cannot be read"):
        CliRunner().invoke(config, ["--diff", a, str(tmp_path)], env={"MACHINE": "generic"}, catch_exceptions=False)


def test_the_page_of_settings_is_current():
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    assert page == settings_page(), "megads config --markdown > docs/settings.md"


def test_the_table_of_engines_is_current():
    page = (Path(__file__).parents[2] / "docs" / "engine.md").read_text()
    found = page.partition("<!-- megads config --engines -->\n")[2].partition("<!-- end -->")[0]
    assert found == _output("--engines") == table(), "megads config --engines"


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


def test_settings_need_no_torch():
    code = (
        "import sys; import megads.cli.config; assert 'pydantic' not in sys.modules; "
        "import megads.config.rules.checks, megads.config.run_folder, megads.plan.memory; "
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


def test_notes_show_no_secrets():
    env = {"MACHINE": "generic", "MEGADS_DATA_TOKEN": "x7Jq-unprintable-91"}
    done = CliRunner().invoke(config, ["--preset", "7B"], env=env, catch_exceptions=False)
    assert "MEGADS_DATA_TOKEN=***" in done.output
    assert "x7Jq" not in done.output
