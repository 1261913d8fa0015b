"""What ranks report: unequal versions and shared devices are found."""

import pytest
import torch.distributed as dist

from megads.device import facts
from megads.doctor.ranks import evaluate
from megads.doctor.ranks.checks import Rank, claim_device, report_versions
from tests.doctor.ranks.test_collectives import _patched
from tests.ranks import run_ranks


def _info():
    from megads.cluster.ranks import RankInfo

    return RankInfo(dist.get_rank(), dist.get_world_size(), dist.get_rank(), dist.get_world_size(), "test")


def _unequal_versions_are_found(folder):
    me = dist.get_rank()
    env = {"MEGADS_DEVICE": "cpu", "SECRET": "x"} | ({"NCCL_ALGO": "Ring"} if me else {})
    rank = Rank(_info(), env, "h", None, 30.0, folder)
    report = report_versions(rank)
    assert "SECRET" not in report["environment"]
    if me:
        report["versions"]["torch"] = "0.1"
    gathered = [None] * 2
    dist.all_gather_object(gathered, report)
    found = evaluate.versions(gathered, ["a", "b"])
    assert found.text.startswith("torch 0.1 on rank 1 (host b), ")
    assert found.notes == ("NCCL_ALGO Ring on rank 1 (host b), none on the others",)


def _ranks_of_one_device_are_found():
    rank = Rank(_info(), {"MEGADS_DEVICE": "cpu"}, "h", None, 30.0, None)
    with _patched(facts, "identity", lambda row, device: "GPU-0"):
        report = claim_device(rank)
    gathered = [None] * 2
    dist.all_gather_object(gathered, report)
    found = evaluate.devices(gathered, ["h", "h"])
    assert found.status == "failed"
    assert found.text.startswith("ranks 0-1 (host h) all use device GPU-0; ")
    assert evaluate.devices(gathered, ["h", "g"]).status == "ok"


@pytest.mark.dist
def test_unequal_versions_of_real_ranks(tmp_path):
    run_ranks(2, _unequal_versions_are_found, tmp_path)


@pytest.mark.dist
def test_two_ranks_of_one_device():
    run_ranks(2, _ranks_of_one_device_are_found)
