"""Rows as gauges, and the addresses that dashboards have."""

from __future__ import annotations

import math

import pytest

from megads.errors import ConfigError
from megads.monitor.trackers.gauges import Gauge, gauges_of, read_address, read_endpoint


def test_numbers_of_a_row():
    row = {"iteration": 3, "lm_loss": 2.5, "mfu": None, "is_x": True, "why": "text", "bad": math.nan, "big": 10**400}
    row |= {"time/forward_s": 0.25, "valid_loss": 3.0, "valid_loss/books": 4.0, "odd key/x": 1}
    row |= {"task/lambada/accuracy": 0.5}
    assert gauges_of(row) == [
        Gauge("iteration", 3.0),
        Gauge("lm_loss", 2.5),
        Gauge("time", 0.25, "part", "forward_s"),
        Gauge("valid_loss", 3.0),
        Gauge("valid_loss", 4.0, "corpus", "books"),
        Gauge("odd_key_x", 1.0),
        Gauge("task", 0.5, "task", "lambada/accuracy"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("9400", ("127.0.0.1", 9400)), ("0.0.0.0:0", ("0.0.0.0", 0)), (" n1:80 ", ("n1", 80)), ("[::1]:9", ("::1", 9))],
)
def test_addresses_of_a_server(text, expected):
    assert read_address(text) == expected


@pytest.mark.parametrize("text", ["", "n1", ":80", "n1:", "n1:99999", "n1:-1", "n1:\u0663", "http://n1:80/"])
def test_what_is_no_address(text):
    with pytest.raises(ConfigError, match=r"PROMETHEUS_ADDRESS=.*: not an address; use a port, e\.g\. 9400"):
        read_address(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://n1:4318", "http://n1:4318/v1/metrics"),
        ("https://n1/otlp/", "https://n1/otlp/v1/metrics"),
        ("http://n1:4318/v1/metrics", "http://n1:4318/v1/metrics"),
    ],
)
def test_where_metrics_are_posted_to(text, expected):
    assert read_endpoint(text) == expected


@pytest.mark.parametrize("text", ["n1:4318", "ftp://n1", "http://", "http://n1:x", "grpc://n1:4317"])
def test_what_is_no_endpoint(text):
    with pytest.raises(ConfigError, match=r"OTLP_ENDPOINT=.*: not an address; use that of a collector's HTTP receiver"):
        read_endpoint(text)
