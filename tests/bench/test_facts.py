"""Where a benchmark ran."""

from __future__ import annotations

import re
import subprocess

from megads.bench.facts import commit, cpu_name, describe, versions
from tests.bench.made import bench_of


def test_the_facts_of_this_host():
    facts = describe(bench_of(peaks=lambda dtype: 3.0), "cpu")
    assert facts["device"].startswith("CPU ")
    assert facts["ranks"] == "1 rank on 1 host"
    assert facts["peak"] == "3 TFLOP/s in bf16"
    assert (facts["machine"], facts["vendor"], facts["driver"], facts["form"]) == ("cpu", "cpu", "-", "tiny")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", facts["date"])
    assert facts["torch"] == versions()["torch"]


def test_a_cpu_has_a_name(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Some CPU @ 2 GHz\n")
    assert cpu_name(tmp_path) == "CPU Some CPU @ 2 GHz"
    assert cpu_name(tmp_path / "none").startswith("CPU ")


def test_a_changed_checkout_is_marked(tmp_path):
    assert commit(tmp_path) == "?"

    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "a")
    clean = commit(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{10}", clean)
    (tmp_path / "a").write_text("2")
    assert commit(tmp_path) == f"{clean}+"
