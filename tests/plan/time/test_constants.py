"""Fitted constants are within what hardware can do."""

from __future__ import annotations

from dataclasses import asdict

from megads.plan.time.constants import Constants, fitted


def test_shares_are_shares_and_times_are_short():
    found = asdict(fitted())
    assert found.keys() == asdict(Constants()).keys()
    long = ("power", "operands", "attention")
    for name, value in found.items():
        assert 0 < value < (1e-4 if name.endswith("_s") else 2.5 if name in long else 1), name


def test_hopper_has_a_class_of_its_own():
    by = fitted()
    assert by.matmul("NVIDIA GH200 480GB") == by.matmul("NVIDIA H100 80GB HBM3") == by.matmul_h100
    assert by.matmul("Tesla V100-SXM2-32GB") == by.matmul_v100
    assert by.matmul("AMD Instinct MI300X") == by.matmul("NVIDIA A100-SXM4-80GB") == by.matmul_a100
