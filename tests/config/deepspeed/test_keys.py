"""A user's JSON of DeepSpeed, and its dotted keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.config.deepspeed.json_file import read_deepspeed_file
from megads.config.deepspeed.keys import KEYS_OF, OURS, TAKEN, TOP_LEVEL, get, put, read_json
from megads.config.tree import fields
from megads.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"aio": 1, "aio": 2}', "aio is given twice in one object"),
        ('{"aio.block_size": 1, "aio": 2}', "'aio.block_size' is a part of 'aio' and next to it"),
        ('{"aio": {"a.b.c": 1, "a.b": {}}}', "'a.b.c' is a part of 'a.b' and next to it"),
        ("[]", "not an object"),
        ('{"aio": NaN}', "NaN is not a number"),
        ('{"aio": 1,}', "not JSON"),
    ],
)
def test_what_is_not_one_object_is_refused_in_a_line(text, words, tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(text)
    for read in (
        lambda: read_json(str(path), "here"),
        lambda: read_deepspeed_file(str(path), "--deepspeed_config", None),
    ):
        with pytest.raises(ConfigError, match="; ") as problem:
            read()
        assert words in str(problem.value)
        assert "\n" not in str(problem.value)


def test_dotted_keys_without_a_section_of_their_name_are_read(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text('{"zero_optimization.stage": 2, "aio.block_size": 1}')
    values, notes = read_deepspeed_file(str(path), "--deepspeed_config", None)
    assert [(name, value) for name, value, _ in values] == [
        ("parallel.zero_stage", 2),
        ("deepspeed.config_overrides", '{"aio": {"block_size": 1}}'),
    ]
    assert not notes


def test_put_makes_sections_and_get_finds_nothing_below_a_value():
    config = {}
    put(config, "a.b.c", 1)
    put(config, "a.d", None)
    assert config == {"a": {"b": {"c": 1}, "d": None}}
    assert get(config, "a.b") == {"c": 1}
    assert get(config, "a.b.c.e") is get(config, "z") is None


def test_the_tables_name_settings_and_sections_that_exist():
    assert set(TAKEN.values()) <= set(fields())
    assert {key.partition(".")[0] for key in (*TAKEN, *KEYS_OF)} | set(OURS) <= set(TOP_LEVEL)


def test_known_keys_are_those_of_the_installed_deepspeed():
    from deepspeed.runtime import precision_config as precision
    from deepspeed.runtime.zero import config as zero
    from deepspeed.runtime.zero import offload_config as offload

    models = {
        "zero_optimization": zero.DeepSpeedZeroConfig,
        "zero_optimization.offload_param": offload.DeepSpeedZeroOffloadParamConfig,
        "zero_optimization.offload_optimizer": offload.DeepSpeedZeroOffloadOptimizerConfig,
        "bf16": precision.DeepSpeedBF16Config,
        "fp16": precision.DeepSpeedFP16Config,
    }
    for name, model in models.items():
        current = {
            field.alias or key
            for key, field in model.model_fields.items()
            if not (field.json_schema_extra or {}).get("deprecated")
        }
        assert set(KEYS_OF[name]) == current, name


def test_known_sections_are_read_by_the_installed_deepspeed():
    import deepspeed

    sources = "".join(path.read_text(errors="replace") for path in Path(deepspeed.__file__).parent.rglob("*.py"))
    assert not [key for key in {*TOP_LEVEL, *OURS} if f'"{key}"' not in sources and f"'{key}'" not in sources]
