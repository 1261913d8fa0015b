"""Every package that megads runs with has a licence that is allowed, or an exception with its reason."""

from __future__ import annotations

import configparser
from email.message import Message
from pathlib import Path

import pytest

from tests.release.licences import ALLOWED, EXCEPTIONS, licence_of, normalised, not_allowed, packages_of

ROOT = Path(__file__).parents[2]
NOT_AT_RUN_TIME = {"test", "apex", "docs"}
NOT_HERE = {"intel", "liger"}
"""Extras of accelerators, which the test environment does not have."""


def _extras() -> set[str]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return set(config["options.extras_require"]) - NOT_AT_RUN_TIME - NOT_HERE


@pytest.fixture(scope="module")
def packages():
    found = packages_of("megads", _extras())
    del found["megads"]
    return found


def test_every_package_has_a_licence_that_is_allowed_or_an_exception(packages):
    assert len(packages) > 100
    assert {"torch", "deepspeed", "uvicorn", "wandb", "lm-eval", "urllib3"} <= packages.keys()  # also what others need
    wrong = {
        name: licence
        for name, package in packages.items()
        if not_allowed(licence := licence_of(package)) and name not in EXCEPTIONS
    }
    assert wrong == {}


def test_exceptions_are_still_needed_and_say_why(packages):
    for name, (licence, why) in EXCEPTIONS.items():
        assert name == normalised(name)
        assert len(why.split()) > 4, f"{name}: {why}"
        assert name in packages, f"{name} is not needed any more; remove its exception"
        assert not_allowed(licence_of(packages[name])), f"{name} is allowed now; remove its exception"
        assert licence_of(packages[name]) == licence, f"{name} states another licence now"


class Stub:
    def __init__(self, **fields: str | list[str]):
        self.metadata = Message()
        for name, values in fields.items():
            for value in [values] if isinstance(values, str) else values:
                self.metadata[name.replace("_", "-")] = value


@pytest.mark.parametrize(
    ("fields", "licence", "wrong"),
    [
        ({"License_Expression": "Apache-2.0 AND MIT", "License": "GPL"}, "Apache-2.0 AND MIT", []),
        ({"License_Expression": "GPL-3.0-only"}, "GPL-3.0-only", ["GPL-3.0-only"]),
        ({"License_Expression": "MIT OR (GPL-2.0-only AND MIT)"}, "MIT OR (GPL-2.0-only AND MIT)", ["GPL-2.0-only"]),
        ({"License_Expression": "Apache-2.0 WITH LLVM-exception"}, "Apache-2.0 WITH LLVM-exception", []),
        ({"Classifier": ["License :: OSI Approved :: MIT License", "Topic :: A"]}, "MIT", []),
        (
            {"Classifier": ["License :: OSI Approved :: MIT License", "License :: Other/Proprietary License"]},
            "MIT AND Other/Proprietary License",
            ["Other/Proprietary License"],
        ),
        ({"License": "Apache 2.0"}, "Apache-2.0", []),
        ({"License": "MIT License  Copyright (c) 2021 X\nPermission is ..."}, "MIT", []),
        ({"License": "NVIDIA Proprietary Software"}, "NVIDIA Proprietary Software", ["NVIDIA Proprietary Software"]),
        ({}, "", ["no licence"]),
    ],
)
def test_what_is_read_of_metadata(fields, licence, wrong):
    stated = licence_of(Stub(**fields))
    assert stated == licence
    assert not_allowed(stated, ALLOWED) == wrong
