"""``megads plot schedule``: what it draws, what it says, and that it needs no torch."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
CODE = """
import sys
from megads.cli.plot.schedule import schedule
schedule(sys.argv[1:], standalone_mode=False)
print("torch" in sys.modules)
"""


def test_the_command_draws_and_needs_no_torch(tmp_path):
    env = {
        **{"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "MACHINE": "cpu", "HOME": os.environ["HOME"]},
        **{"TOKENIZER_TYPE": "NullTokenizer", "VOCAB_SIZE": "100", "DATA_PATH": str(tmp_path / "no-data")},
        **{"LR_DECAY_STYLE": "wsd", "COOLDOWN": "0.2"},
    }
    words = ["--preset", "7B", "--set", "train.train_iters=50", "--min-lr", "1e-4", "-o", "a.png"]
    done = subprocess.run([sys.executable, "-c", CODE, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "7B: wsd, 50 steps, 102,400 tokens"
    assert ["constant", "40", "640", "81,920", "0.002", "0.1"] in [line.split() for line in lines]
    assert lines[-2:] == ["a.png", "False"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_a_file_that_can_not_be_written_is_told(tmp_path):
    from click.testing import CliRunner

    from megads.cli.plot.schedule import schedule
    from megads.errors import ConfigError

    env = {"MACHINE": "cpu", "TOKENIZER_TYPE": "NullTokenizer", "VOCAB_SIZE": "100", "DATA_PATH": "none"}
    done = CliRunner().invoke(schedule, ["--preset", "tiny", "-o", str(tmp_path / "no/a.png")], env=env)
    assert isinstance(done.exception, ConfigError)
    assert "No such file or directory; use a file that can be written" in str(done.exception)
