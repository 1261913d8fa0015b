"""Ranks on accelerators get expandable segments where these work; a user's own options are never changed."""

from __future__ import annotations

import pytest

from megads.errors import ConfigError
from megads.launch.preflight import allocator
from megads.launch.preflight.allocator import allocator_variables, variable_of
from tests.engine.plain import settings

EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


@pytest.fixture
def here(monkeypatch):
    """Have this host show devices of a vendor, or none."""

    def show(vendor: str, torch: str | None = "2.13.0") -> None:
        monkeypatch.setattr(allocator, "visible_accelerators", lambda env: {vendor: 4} if vendor != "cpu" else {})
        monkeypatch.setattr(allocator, "version_of", lambda package: torch)

    return show


@pytest.mark.parametrize(
    ("vendor", "asked", "env", "expected"),
    [
        ("nvidia", "auto", {}, EXPANDABLE),
        ("amd", "auto", {}, {}),
        ("intel", "auto", {}, {}),
        ("cpu", "auto", {}, {}),
        ("cpu", "max_split_size_mb:512", {}, {}),
        ("nvidia", "none", {}, {}),
        ("amd", "expandable_segments:True", {}, EXPANDABLE),
        ("nvidia", "auto", {"MEGADS_DEVICE": "cpu"}, {}),
        ("nvidia", "auto", {"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}, {}),
        ("nvidia", "auto", {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}, {}),
        ("nvidia", "auto", {"PYTORCH_CUDA_ALLOC_CONF": ""}, EXPANDABLE),
    ],
)
def test_the_options_of_ranks(here, vendor, asked, env, expected):
    here(vendor)
    assert allocator_variables(settings({}, **{"launch.allocator": asked}), env) == expected


def test_the_variable_is_the_one_that_this_torch_knows(here):
    here("nvidia", torch="2.8.0+cu128")
    assert allocator_variables(settings({}), {}) == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    newest = ["PYTORCH_ALLOC_CONF"] * 4
    assert [variable_of(each) for each in ("2.9.0", "3.0", "", None, "1.13.1")] == [*newest, "PYTORCH_CUDA_ALLOC_CONF"]


@pytest.mark.parametrize("asked", ["yes", "expandable_segments", "a:1 b:2", "a:1,"])
def test_what_is_no_option_is_refused(here, asked):
    here("nvidia")
    with pytest.raises(ConfigError, match=f"ALLOCATOR={asked}: not auto, none, or options such as"):
        allocator_variables(settings({}, **{"launch.allocator": asked}), {})


def test_two_answers_are_refused(here):
    here("nvidia")
    with pytest.raises(ConfigError, match="ALLOCATOR=none and PYTORCH_HIP_ALLOC_CONF=x:1 are both set; use one"):
        allocator_variables(settings({}, **{"launch.allocator": "none"}), {"PYTORCH_HIP_ALLOC_CONF": "x:1"})
