"""Shapes of presets, and what a laptop makes of them."""

from __future__ import annotations

import pytest

from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.sources.presets import presets, read_preset
from megads.config.sources.resolve import resolve
from megads.config.tree import fields
from megads.errors import ConfigError
from megads.plan.memory import count_parameters
from tests.config.advice import check

GEMMA = 256_000


def _derived(preset: str, vocab_size: int = GEMMA) -> RunConfig:
    resolved = resolve(preset, env={}, machine="generic")
    ranks = resolved.run.parallel.tensor * resolved.run.parallel.pipeline
    known = 30_522 if resolved.run.model.family in ("bert", "t5") else min(vocab_size, 32_000)
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=known).run


@pytest.mark.parametrize(
    ("preset", "count"),
    [("gpt-345M", 354_871_296), ("codeparrot-110M", 111_008_256), ("gpt3-175B", 174_615_846_912)],
)
def test_parameters_of_gpt_presets(preset, count):
    assert count_parameters(_derived(preset).model) == count


def test_parameters_of_2b_with_the_gemma_vocabulary():
    resolved = resolve("2B", env={}, machine="generic")
    run = derive(resolved, num_hosts=1, ranks_per_host=1, vocab_size=GEMMA).run
    assert count_parameters(run.model) == 1_986_054_144


@pytest.mark.parametrize("name", [name for name in presets() if name.startswith("gpt-") and name.endswith(("B", "T"))])
def test_scaling_table_is_named_by_its_parameters(name):
    number, unit = float(name[4:-1]), {"B": 1e9, "T": 1e12}[name[-1]]
    assert count_parameters(_derived(name).model) / unit == pytest.approx(number, rel=0.04)


@pytest.mark.parametrize("name", ["gpt2-1.5B", "gpt2-4B", "gpt2-8B", "gpt2-20B"])
def test_gpt2_sizes_are_named_by_their_parameters(name):
    run = _derived(name)
    assert count_parameters(run.model) / 1e9 == pytest.approx(float(name[5:-1]), rel=0.06)
    assert run.model.head_dim in (100, 144, 128, 119)


def test_parameters_of_bert_and_t5():
    """The vocabulary of BERT uncased, with [BOS] and [EOS] and for T5 100 tokens more, in rows of 128."""
    width, rows = 1024, 30592
    layers = 24 * (12 * width**2 + 13 * width) + 2 * width
    heads = width**2 + 3 * width + rows + width**2 + 3 * width + 2
    assert count_parameters(_derived("bert-345M").model) == (rows + 512 + 2) * width + layers + heads
    width, rows = 768, 30720
    layers = 12 * (12 * width**2 + 13 * width) + 12 * (16 * width**2 + 19 * width) + 4 * width
    assert count_parameters(_derived("t5-220M").model) == (rows + 512) * width + layers + rows


def test_parameters_of_retro_are_those_of_its_gpt_the_looks_and_the_encoder():
    width, untied = 1024, {"model.tied_embeddings": "false"}
    retro, gpt = (
        resolve("retro-843M", env={"MODEL_FAMILY": family}, overrides=untied, machine="generic")
        for family in ("retro", "gpt")
    )
    with_looks, without = (
        count_parameters(derive(each, num_hosts=1, ranks_per_host=1, vocab_size=256_000).run.model)
        for each in (retro, gpt)
    )
    look, layer = 4 * width**2 + 6 * width, 12 * width**2 + 13 * width
    assert with_looks - without == 6 * look + 2 * layer + look
    assert with_looks == pytest.approx(878e6, rel=1e-2)


@pytest.mark.parametrize("name", sorted(presets()))
def test_every_preset_trains_on_a_cpu(name):
    for tensor in ("1", "2", "4"):
        resolved = resolve(name, env={"TP": tensor}, machine="cpu")
        run = derive(resolved, num_hosts=1, ranks_per_host=int(tensor), vocab_size=2048).run
        check(run, int(tensor))
        assert run.train.dtype == "fp32"
        assert count_parameters(run.model) < 40_000_000


@pytest.mark.parametrize("name", ["7B", "2B", "70B", "llama3-3B", "smollm3-3B", "phi4-mini", "gpt-345M", "gpt-18B"])
def test_presets_of_this_version_pass_the_checks_at_full_width(name):
    run = _derived(name)
    check(run, run.parallel.tensor)


def test_layers_are_the_presets_on_a_cpu():
    assert resolve("70B", env={}, machine="cpu").run.model.num_layers == 80


def test_aliases_name_one_preset():
    aliases = [alias for layer in presets().values() for alias in layer.aliases]
    assert len(aliases) == len(set(aliases))
    assert not set(aliases) & set(presets())
    for name, layer in presets().items():
        for alias in layer.aliases:
            assert read_preset(alias).origin.detail == name


def test_presets_hold_only_what_differs():
    for name, layer in presets().items():
        for setting, value in layer.settings.items():
            if setting != "model.family":
                assert value != fields()[setting].default, f"{name}.yaml restates {setting}"


def test_no_preset_reads_outside_its_folder():
    with pytest.raises(ConfigError, match=r"no preset '\.\./schema'"):
        read_preset("../schema")


@pytest.mark.parametrize(
    ("name", "vocabulary", "count"),
    [
        ("Llama-3-8B", 128_256, 8_030_261_248),
        ("Llama-2-7B", 32_000, 6_738_415_616),
        ("Llama-2-13B", 32_000, 13_015_864_320),
    ],
)
def test_published_shapes_have_the_published_parameters(name, vocabulary, count):
    run = derive(resolve(name, env={}, machine="generic"), num_hosts=1, ranks_per_host=1, vocab_size=vocabulary).run
    assert count_parameters(run.model) == count


@pytest.mark.parametrize(("name", "layer"), presets().items())
def test_every_preset_says_what_it_is(name, layer):
    assert 10 < len(layer.description) < 110


def test_a_preset_may_be_a_file(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("settings:\n  model.num_layers: 3\n  model.hidden_size: 96\n  model.num_heads: 4\n")
    resolved = resolve(str(mine), env={}, machine="generic")
    run = derive(resolved, num_hosts=1, ranks_per_host=1, vocab_size=100).run
    assert (run.model.num_layers, run.preset, run.name) == (3, str(mine), "mine")
    assert str(resolved.origins["model.num_layers"]) == f"preset {mine}"
    with pytest.raises(ConfigError, match=r"preset other.yaml: cannot be read: No such file"):
        resolve(str(tmp_path / "other.yaml"), env={}, machine="generic")
