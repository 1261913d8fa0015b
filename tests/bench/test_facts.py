"""Where a benchmark ran."""

from __future__ import annotations

import re

from megads.bench.facts import cpu_name, describe, versions
from tests.bench.made import bench_of


def test_the_facts_of_this_host():
    facts = describe(bench_of(peaks=lambda dtype: 3.0), "cpu")
    assert facts["device"].startswith("CPU ")
    assert facts["ranks"] == "1 rank on 1 host"
    assert facts["peak"] == "3 TFLOP/s in bf16"
    assert (facts["machine"], facts["vendor"], facts["driver"], facts["form"]) == ("cpu", "cpu", "-", "tiny")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", facts["date"])
    assert re.fullmatch(r"\d+\.\d+\.\d+, commit (\?|[0-9a-f]{10}\+?)", facts["megads"])
    assert facts["torch"] == versions()["torch"]


def test_a_cpu_has_a_name(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Some CPU @ 2 GHz\n")
    assert cpu_name(tmp_path) == "CPU Some CPU @ 2 GHz"
    assert cpu_name(tmp_path / "none").startswith("CPU ")
