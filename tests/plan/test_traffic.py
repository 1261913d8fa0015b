"""What a rank sends, against the collectives that the real engine asks torch for, as any rank of many."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from tests.fake_ranks import as_rank

GRID = ("pipe", "data", "seq", "tensor")


def _counted(degrees: dict[str, int], changes: dict[str, str], parts: int) -> Any:
    import torch
    import torch.distributed as dist

    from megads.comm.grid import Grid
    from megads.comm.groups import make_groups
    from tests.engine.plain import make_engine
    from tests.fake_ranks import like_this_rank

    run, groups = _run(degrees, changes, parts), make_groups(Grid(**degrees), dist.get_rank())
    engine = make_engine(run, groups)
    batches = [torch.full((run.train.micro_batch, run.model.seq_length + 1), 7) for _ in range(parts)]
    engine.train_step(batches, 1e-3)
    with like_this_rank() as counts:
        engine.train_step(batches, 1e-3)
    return counts


def _run(degrees: dict[str, int], changes: dict[str, str], parts: int) -> Any:
    from tests.engine.plain import settings

    small = {name: degrees[name] for name in ("pipe", "seq", "tensor") if name in degrees}
    run = settings(small, **{"model.hidden_size": "64", "model.num_heads": "8", "model.num_kv_heads": "8", **changes})
    data = degrees.get("data", 1)
    train = run.train.model_copy(update={"global_batch": run.train.micro_batch * parts * data, "grad_acc_steps": parts})
    return run.model_copy(update={"train": train, "parallel": run.parallel.model_copy(update={"data": data})})


KINDS = {
    "allreduce": "all-reduce",
    "allgather_base": "all-gather",
    "reduce_scatter_base": "reduce-scatter",
    "alltoall_base": "all-to-all",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "send": "send",
}
PARTS = 4
BF16 = {"train.dtype": "bf16"}
NATIVE = {"engine.kind": "native"}
TINY = 1000
"""Bytes of a call that the formulas leave out: norms' gradients, maxima and sums of the loss, scalars."""

LARGE = {"pipe": 2, "data": 64, "seq": 2, "tensor": 4}
TIED = BF16 | {"parallel.scatter_norms": "1", "model.tied_embeddings": "1"}
AGAIN = BF16 | {"model.num_kv_heads": "2", "recompute.granularity": "full", "recompute.method": "uniform"}
GATHERED = {
    "deepspeed.param_persistence_threshold": "0",
    "deepspeed.max_reuse_distance": "0",
    "deepspeed.prefetch_bucket_size": "0",  # else a model as small as this one is fetched whole, ahead
}


@pytest.mark.parametrize(
    ("degrees", "changes", "rank"),
    [
        pytest.param({"data": 16}, {"parallel.zero_stage": "1"}, 3, id="zero1-fp32"),
        pytest.param({"data": 16}, BF16 | {"parallel.zero_stage": "2"}, 15, id="zero2"),
        pytest.param({"data": 16}, BF16 | {"parallel.zero_stage": "3"}, 0, id="zero3-kept"),
        pytest.param({"data": 16}, BF16 | GATHERED | {"parallel.zero_stage": "3"}, 7, id="zero3-gathered-twice"),
        pytest.param({"data": 16}, NATIVE | {"parallel.zero_stage": "0"}, 2, id="native-zero0-fp32"),
        pytest.param({"data": 8, "tensor": 2}, NATIVE | BF16 | {"parallel.zero_stage": "1"}, 9, id="native-zero1-tp2"),
        pytest.param({"data": 16}, NATIVE | BF16 | {"parallel.zero_stage": "2"}, 15, id="native-zero2"),
        pytest.param({"data": 16}, NATIVE | BF16 | {"parallel.zero_stage": "3"}, 7, id="native-zero3"),
        pytest.param({"data": 2, "seq": 4, "tensor": 2}, AGAIN, 5, id="sp4-tp2-recomputed"),
        pytest.param(LARGE, TIED, 0, id="rank-0-of-1024"),
        pytest.param(LARGE, TIED, 1023, id="rank-1023-of-1024"),
    ],
)
def test_what_the_engine_asks_for_is_what_the_formulas_say(degrees, changes, rank):
    from megads.plan.memory import stages
    from megads.plan.traffic import traffic

    world, run = math.prod(degrees.values()), _run(degrees, changes, PARTS)
    stage = list(stages(run))[rank * degrees.get("pipe", 1) // world]
    messages = traffic(run, world, stage)
    expected: Counter[Any] = Counter()
    for each in messages:
        expected[each.kind, each.ranks] += each.count * each.num_bytes
    found: Counter[Any] = Counter()
    calls: Counter[Any] = Counter()
    for call, count in as_rank(rank, world, _counted, degrees, changes, PARTS).items():
        is_expected = (KINDS.get(call.name), len(call.ranks)) in expected
        if is_expected and call.num_bytes > (TINY if call.name in ("allreduce", "broadcast") else 0):
            found[KINDS[call.name], len(call.ranks)] += count * call.num_bytes
            calls[KINDS[call.name], len(call.ranks)] += count
        else:
            assert call.name == "recv" or call.num_bytes <= TINY, call
    for (kind, ranks), num_bytes in (+expected).items():
        # ZeRO fills its parts up; nothing else is rounded.
        filling = 8 * ranks if ranks == world // (degrees.get("pipe", 1) * degrees.get("tensor", 1)) else 0
        if run.engine.kind == "native":  # parts and parameters begin at multiples of 64 elements
            number = sum(each.count for each in messages if (each.kind, each.ranks) == (kind, ranks))
            assert calls[kind, ranks] == number, (kind, ranks)
            filling = 4 * 64 * ranks * number
        assert num_bytes <= found[kind, ranks] <= num_bytes + filling, (kind, ranks)
    assert all(each.sent_bytes < 2 * each.count * each.num_bytes for each in messages if each.num_bytes)
