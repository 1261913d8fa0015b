from importlib import metadata

import pytest

from megads.errors import DependencyError
from megads.launch.versions import check_versions, numbers


def test_versions_compare_as_numbers():
    assert numbers("2.13.0+cpu") == (2, 13, 0)
    assert numbers("0.9.10") < numbers("0.19.3")


def test_the_tested_set_is_accepted():
    check_versions()


def test_a_missing_package_names_the_way_to_get_it():
    with pytest.raises(DependencyError, match=r"no-such-package is not installed.*pip install -c envs/constraints.txt"):
        check_versions(("no-such-package",))


@pytest.mark.parametrize(
    ("version", "defect"),
    [("0.16.4", "summing|sums"), ("0.18.5", "once per stage"), ("0.15.4", "race"), ("0.19.2", "once")],
)
def test_versions_that_train_wrongly_are_refused_by_name(monkeypatch, version, defect):
    monkeypatch.setattr(metadata, "version", lambda package: version)
    with pytest.raises(DependencyError, match=f"deepspeed {version}.*({defect}).*fixed in"):
        check_versions(("deepspeed",))
