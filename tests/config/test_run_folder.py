"""config.yaml: whole, equal after a round trip, and one line when broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from megads.config.derive import derive
from megads.config.run_folder import load_config, save_config
from megads.config.sources.presets import presets
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError


def _derived(preset="7B", **env):
    resolved = resolve(preset, env={name: str(value) for name, value in env.items()}, machine="cpu")
    return derive(resolved, num_hosts=1, ranks_per_host=1, vocab_size=2048)


@pytest.mark.parametrize("preset", sorted(presets()))
def test_round_trip(preset, tmp_path):
    resolved = _derived(preset, LR="1.23456789012e-7")
    save_config(resolved.run, resolved.origins, tmp_path / "run" / "config.yaml")
    assert load_config(tmp_path / "run" / "config.yaml") == resolved.run
    assert os.listdir(tmp_path / "run") == ["config.yaml"]


@pytest.mark.parametrize(
    "text", ["on", "007", "a # b", "a: b", "'", '"', "line\nbreak", "\u00e9\U0001f600", " ", "~", "1e9"]
)
def test_text_survives(text, tmp_path):
    resolved = _derived(RUN_DIR=text, DATA_FILE_LIST=text)
    save_config(resolved.run, resolved.origins, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml").dir == text


def test_origins_are_comments(tmp_path):
    resolved = _derived(NLAYERS=3)
    save_config(resolved.run, resolved.origins, tmp_path / "config.yaml")
    text = (tmp_path / "config.yaml").read_text()
    assert "  num_layers: 3 " in text
    assert "# env NLAYERS" in text
    assert "# derived HIDDEN / HEADS" in text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_layers: 32", "num_layers: two", "model.num_layers: 'two' is not an int"),
        ("num_layers: 32", "num_layers: 0", "model.num_layers: 0 must be greater than 0"),
        ("num_layers:", "num_layer:", "no setting named 'model.num_layer'; did you mean model.num_layers"),
        ("  num_layers: 32", "", "model.num_layers is missing"),
        ("model:", "model: [", "is not valid YAML"),
        ("tensor: 1", "tensor: true", "parallel.tensor: True is not an int"),
    ],
)
def test_broken_files_are_one_line(old, new, message, tmp_path):
    path = tmp_path / "config.yaml"
    resolved = _derived()
    save_config(resolved.run, resolved.origins, path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"- 1\n", b"\xff\xfe\x00", b"model: 3\n"])
def test_other_files_are_one_line(content, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.yaml: [^\n]+$"):
        load_config(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read: No such file"):
        load_config(tmp_path / "absent.yaml")


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    resolved = _derived()
    with pytest.raises(ConfigError, match=r"config\.yaml: cannot be written: .*; use another RUN_DIR"):
        save_config(resolved.run, resolved.origins, tmp_path / "file" / "config.yaml")


def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "config.yaml"
    resolved = _derived()
    save_config(resolved.run, resolved.origins, path)
    before = path.read_text()
    code = (
        "import resource, signal, sys; from pathlib import Path; from megads.config.run_folder import *; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); "
        "path = Path(sys.argv[1]); save_config(load_config(path), {}, path)"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert "cannot be written: File too large; free some space" in done.stderr
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["config.yaml"]
