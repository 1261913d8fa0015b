"""The error that is shown next to a prediction is that of measured runs on the same kind of device."""

from __future__ import annotations

from megads.config.derive import derive
from megads.config.sources.resolve import resolve
from megads.plan.errors import class_of, error_of, memory_error
from megads.plan.places.place import place_of


def _run(preset):
    resolved = resolve(preset, env={}, machine="generic")
    return derive(resolved, num_hosts=1, ranks_per_host=1, vocab_size=32_000).run


def test_a_device_with_measured_runs_has_their_error():
    run = _run("7B")
    found = {name: error_of(place_of(name), run) for name in ("v100", "a100", "h100", "h200", "gh200", "mi300x")}
    assert found["h100"].what == f"{found['h100'].rows} measured runs on H100"
    assert all(0 < each.mean <= each.p95 < 1 for each in found.values())
    assert found["mi300x"].rows >= sum(found[name].rows for name in ("v100", "a100", "h100", "h200", "gh200"))
    assert "none on AMD Instinct MI300X: it may be larger" in found["mi300x"].what


def test_a_family_without_measured_runs_says_so():
    assert error_of(place_of("h100"), _run("t5-220M")).what.endswith(", none of them t5")
    assert error_of(place_of("h100"), _run("bert-345M")).what.endswith(", none of them bert")


def test_the_error_of_memory_is_that_of_published_peaks():
    error = memory_error()
    assert 0 < error.mean < error.p95 < 1
    assert error.what == f"{error.rows} published runs"


def test_classes_go_by_whole_words():
    assert [class_of(name) for name in ("NVIDIA GH200 480GB", "NVIDIA A100-SXM4-80GB", "NVIDIA H20")] == [
        "GH200",
        "A100",
        "",
    ]
