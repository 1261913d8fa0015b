"""The rule for names that will be removed: kept, read as what replaces them, reported in one line, removed in time."""

from __future__ import annotations

import pytest

from megads.config import tree
from megads.config.reference import explanation
from megads.config.run_folder import load_config, save_config
from megads.config.sources import env_names, flags
from megads.config.sources.flags import split_flags
from megads.config.sources.presets import read_preset
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError
from megads.release import deprecated as table
from megads.release.deprecated import KEPT_FOR, TABLE, Deprecated, deprecated, numbers, overdue
from megads.release.versions import VERSION

ROWS = (
    Deprecated("variable", "OLD_LAYERS", "0.1", "0.3", use="NLAYERS"),
    Deprecated("key", "model.layers", "0.1", "0.3", use="model.num_layers"),
    Deprecated("option", "--old-layers", "0.1", "0.3", use="--num-layers"),
)
SAYS = "is deprecated and will be removed in megads 0.3: use"
CACHED = (deprecated, tree.names_of, env_names.setting_names, env_names._known_names, flags.flags)


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch):
    """Have the names of ``ROWS`` be deprecated."""
    monkeypatch.setattr(table, "TABLE", ROWS)
    for each in CACHED:
        each.cache_clear()
    yield
    monkeypatch.undo()
    for each in CACHED:
        each.cache_clear()


def test_no_name_outlives_the_version_that_removes_it():
    assert overdue(VERSION) == []


def test_a_name_is_kept_for_two_minor_versions_and_says_what_to_do():
    assert len({(each.kind, each.name) for each in TABLE}) == len(TABLE)
    for each in TABLE:
        since, removed = numbers(each.since), numbers(each.removed)
        assert since <= numbers(VERSION), f"{each.name}: deprecated in a version that is not there yet"
        assert removed >= (since[0], since[1] + KEPT_FOR) or removed[0] > since[0], each.name
        assert bool(each.use) != bool(each.why), each.name


def test_versions_compare_as_numbers_and_the_version_that_removes_a_name_is_too_late(renamed):
    assert numbers("0.10") > numbers("0.9.7")
    assert overdue("0.2.9") == []
    assert overdue("0.3.0") == overdue("0.10") == overdue("1.0.0") == [each.name for each in ROWS]


def test_what_replaces_a_name_exists():
    known = {
        "variable": set(env_names.setting_names()),
        "key": set(tree.fields()),
        "option": set(flags.flags()),
    }
    for each in TABLE:
        assert not each.use or each.use in known[each.kind], each.name


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ({"env": {"OLD_LAYERS": "3"}}, f"OLD_LAYERS {SAYS} NLAYERS"),
        ({"overrides": {"model.layers": "3"}}, f"--set model.layers=3: model.layers {SAYS} model.num_layers"),
        ({"flags": [("--old-layers", "3")]}, f"--old-layers {SAYS} --num-layers"),
    ],
)
def test_an_old_name_is_read_as_the_new_one_with_one_line(renamed, given, note):
    found = resolve("tiny", machine="cpu", **{"env": {}, **given})
    assert found.run.model.num_layers == 3
    assert [line for line in found.notes if "deprecated" in line] == [note]
    assert not [line for line in found.notes if "has no effect" in line]


def test_files_may_have_old_names(renamed, tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text("model:\n  layers: 3\n")
    found = resolve("tiny", env={}, overrides={"config_file": str(own)}, machine="cpu")
    assert found.run.model.num_layers == 3
    assert [line for line in found.notes if "deprecated" in line] == [
        f"--config {own}: model.layers {SAYS} model.num_layers"
    ]
    preset = tmp_path / "preset.yaml"
    preset.write_text("settings:\n  model.layers: 3\n")
    found = resolve(str(preset), env={}, machine="cpu")
    assert read_preset(str(preset)).settings == {"model.num_layers": 3}
    assert f"preset preset.yaml: model.layers {SAYS} model.num_layers" in found.notes


def test_a_run_that_an_older_version_started_is_read_silently(renamed, tmp_path):
    path = tmp_path / "config.yaml"
    found = resolve("tiny", env={"NLAYERS": "3"}, machine="cpu")
    save_config(found.run, found.origins, path)
    text = path.read_text().replace("  num_layers: 3", "  layers: 3")
    lines = text.splitlines(keepends=True)
    path.write_text(lines[0] + "".join(lines[2:]))  # without its checksum, as after an edit
    assert "  layers: 3" in text
    assert load_config(path) == found.run
    again = resolve(env={}, overrides={"config_file": str(path)}, machine="cpu")
    assert again.run.model.num_layers == 3
    assert not [line for line in again.notes if "deprecated" in line]


def test_both_names_must_agree_and_strict_rejects_the_old_one(renamed):
    with pytest.raises(ConfigError, match=r"NLAYERS=2 and OLD_LAYERS=3 are two names of model.num_layers"):
        resolve("tiny", env={"OLD_LAYERS": "3", "NLAYERS": "2"}, machine="cpu")
    with pytest.raises(ConfigError, match=r"OLD_LAYERS is deprecated .* MEGADS_STRICT=1 rejects it"):
        resolve("tiny", env={"OLD_LAYERS": "3", "MEGADS_STRICT": "1"}, machine="cpu")


def test_an_old_option_takes_its_value_as_the_new_one_does(renamed):
    assert split_flags(["--old-layers", "3", "mine"], {}) == ([("--old-layers", "3")], ["mine"])


def test_a_setting_says_that_it_is_deprecated(renamed):
    lines = explanation("model.num_layers", 2, "default")
    assert [line.split()[:2] for line in lines if "deprecated" in line] == [
        ["note", "OLD_LAYERS"],
        ["note", "model.layers"],
    ]
    assert not [line for line in explanation("model.hidden_size", 2, "default") if "deprecated" in line]


def test_a_name_without_effect_says_so_and_what_to_do():
    found = resolve("tiny", env={"NO_LOAD_RNG": "1"}, machine="cpu")
    assert [line for line in found.notes if "deprecated" in line] == [
        "NO_LOAD_RNG is deprecated and will be removed in megads 0.3: it has no effect, since no generator has a state "
        "to load or save; remove it"
    ]
