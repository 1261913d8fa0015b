"""The memory that is planned, against 451 published rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.planner.memory import Result, by_suite, left_out, lines, reserve_of, results, rows, summary, unsafe
from benchmarks.planner.other_memory import a100, gh200, h200, torchtitan
from megads.errors import ConfigError
from megads.plan.conventions import DEEPSPEED_PROCESS_GIB, MEGATRON_DEEPSPEED


@pytest.fixture(scope="module")
def found() -> list[Result]:
    return results()


@pytest.fixture(scope="module")
def described(found) -> list[Result]:
    """Rows that say all that their memory depends on."""
    return [each for each in found if not each.unknown]


def test_static_memory_of_all_rows(found):
    assert len(found) == len(rows()) == 451
    assert summary(found).static_right >= 0.95


def test_peak_memory(described):
    assert len(described) >= 430
    errors = summary(described)
    assert errors.static_right >= 0.97
    assert errors.peak_mean <= 0.05
    assert errors.peak_p95 <= 0.12


@pytest.mark.parametrize("suite", ["gpt", "bert", "t5", "hybrid", "moe"])
def test_every_suite(suite, described):
    """Nothing was fitted to any of them; models with experts assume that tokens go to experts evenly."""
    errors = summary(by_suite(described)[suite])
    assert errors.peak_mean <= (0.1 if suite == "moe" else 0.04)
    assert errors.static_right >= (0.85 if suite == "moe" else 0.99)


@pytest.mark.parametrize("column", ["suite", "platform"])
def test_a_reserve_fitted_elsewhere_is_enough_on_devices_that_are_sold(column, described):
    """No row is said to fit a device of 8 GiB or more that has less than it needed."""
    for reserve, wrong, _ in left_out(described, lambda each: str(each.facts[column])).values():
        assert reserve <= 0.12
        assert wrong == 0


def test_a_reserve_that_is_none_lets_rows_through_that_do_not_fit(described):
    assert 0 < reserve_of(described) <= 0.1
    assert not unsafe(described, 0.1)
    assert unsafe(described, -0.5)


def test_the_table_of_the_docs_is_what_is_computed(found):
    """``python -m benchmarks.planner.memory`` prints it."""
    assert "\n".join(lines(found)) in Path(__file__).parents[2].joinpath("docs/gpu.md").read_text()


def test_rows_of_other_systems():
    """Two rows of 70B have a micro-batch of 16 and TP; the row of 32 devices states another one's memory."""
    of_8b = [each for each in torchtitan() if "8B" in each.name]
    assert len(of_8b) == 12
    assert max(abs(each.error) for each in of_8b) <= 0.05
    assert max(abs(each.error) for each in h200()) <= 0.12
    on_gh200 = [each for each in gh200() if "on 32, PP 4" not in each.name]
    assert len(on_gh200) == 13
    assert max(abs(each.error) for each in on_gh200) <= 0.12


def test_the_fitted_constant_is_the_same_without_any_one_row():
    """What rows of Megatron-DeepSpeed have besides tensors."""
    rest = [each.measured - each.predicted for each in gh200(replace(MEGATRON_DEEPSPEED, library_bytes=0))]
    for index in range(len(rest)):
        others = sorted(rest[:index] + rest[index + 1 :])
        assert others[len(others) // 2] == pytest.approx(DEEPSPEED_PROCESS_GIB, abs=0.5)


def test_activations_as_a_paper_states_them():
    """All 24 of arXiv 2205.05198: four models, without and with sequence parallelism, recomputation of three kinds."""
    errors = [abs(each.error) for each in a100()]
    assert len(errors) == 24
    assert max(errors) <= 0.012
    assert sorted(errors)[len(errors) // 2] <= 0.001


def test_a_file_of_the_users_own(tmp_path, found):
    """Fewer columns, unknown tests and rows without static memory are read; what is no such file is refused."""
    file = tmp_path / "own.csv"
    columns = "suite,test,platform,peak_alloc_GiB_max,num-layers,hidden-size,num-attention-heads,seq-length,"
    columns += "micro-batch-size,global-batch-size,bf16,use-distributed-optimizer,attention-backend,deterministic-mode"
    same = next(each for each in found if "dist_optimizer_no_mmap" in each.facts["test"])
    row = f"gpt,mine,{same.facts['platform']},{same.measured_peak},12,512,8,1024,4,32,true,true,unfused,true"
    file.write_text(f"{columns}\n{row}\n")
    (own,) = results(file)
    assert own.peak == pytest.approx(same.peak, rel=0.01)
    assert summary([own]).peak_mean == abs(own.peak_error)
    file.write_text("suite,test\n")
    with pytest.raises(ConfigError, match=r"has no column peak_alloc_GiB_max, platform; its columns are"):
        results(file)
    with pytest.raises(ConfigError, match=r"missing.csv is no file; pass a CSV file"):
        results(tmp_path / "missing.csv")
