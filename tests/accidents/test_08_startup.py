"""Row 8: starts that grow with the ranks: a broadcast that ended 6,144 ranks, and a race for one index of samples."""

from __future__ import annotations

from benchmarks.startup_ranks import measure, world_calls


def test_ranks_gather_nothing_and_build_an_index_once(tmp_path):
    """Four ranks need the same new indices at once; what all of them exchange is small for any number of ranks."""
    counted = measure(4, tmp_path)
    assert {name for each in counted for name, _ in world_calls(each, 4)} == {"broadcast", "all_reduce"}
    assert max(size for each in counted for name, size in world_calls(each, 4) if name == "all_reduce") <= 8
    indices = [path.name for path in (tmp_path / "cache/index").iterdir()]
    assert {name.rpartition(".")[2] for name in indices} == {"safetensors"}  # neither locks nor halves are left
    writers = [path for each in counted for path in each["opened"] if path.endswith(".tmp") and "/index/." in path]
    made = [path.rpartition("/")[2].split(".")[1] for path in writers if ".mark." not in path]
    assert len(made) == len(set(made)) > 0
