"""The table of what vendors need: every row is complete, its sources exist, and values are judged as it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from megads.device.names import ALLOCATOR, MASKS
from megads.device.needs import TABLE, Needs, Variable, Version, read_needs, table
from megads.errors import ConfigError
from megads.storage.reading import read_yaml

ROOT = Path(__file__).parents[2]
NEEDS = read_needs(ROOT)


def test_every_source_is_an_address_and_is_used():
    rows = (*NEEDS.masks, *NEEDS.bindings, *NEEDS.allocators, *NEEDS.libraries, *NEEDS.variables, *NEEDS.versions)
    assert {source for row in rows for source in row.sources} == NEEDS.sources.keys()
    assert all(address.startswith("https://") for address in NEEDS.sources.values())


def test_every_vendor_has_masks_an_allocator_a_binding_and_network_rows():
    for vendor in ("nvidia", "amd", "intel"):
        for rows in (NEEDS.masks, NEEDS.allocators, NEEDS.bindings, NEEDS.variables_of(vendor, "slingshot")):
            assert any(vendor in row.vendors for row in rows)


def test_masks_and_allocator_are_those_that_the_launcher_knows():
    masks = {vendor: {row.variable for row in NEEDS.masks if vendor in row.vendors} for vendor in MASKS}
    assert masks == {vendor: set(names) for vendor, names in MASKS.items()}
    values = {vendor: row.value for row in NEEDS.allocators for vendor in row.vendors if row.value}
    assert values == ALLOCATOR
    assert all(value != row.harmful for row in NEEDS.allocators for value in [ALLOCATOR.get(row.vendors[0])])


def test_a_variable_has_one_row_per_vendor():
    seen = [(row.name, vendor) for row in NEEDS.variables for vendor in row.vendors]
    assert sorted(seen) == sorted(set(seen))


def test_machines_and_exceptions_are_those_of_envs():
    known = {path.stem for path in (ROOT / "envs").glob("*.yaml")}
    assert {name for fabric in NEEDS.fabrics.values() for name in fabric.machines} <= known
    assert {name for row in NEEDS.variables for name in row.exceptions} <= known


def variable(**given: object) -> Variable:
    row = {"name": "X", "vendors": ["amd"], "why": "w", "sources": ["s"], "level": "required", **given}
    return Variable.model_validate(row)


@pytest.mark.parametrize(
    ("row", "value", "state"),
    [
        ({"values": ["1"]}, "1", "ok"),
        ({"values": ["1"]}, "0", "differs"),
        ({"values": ["1"]}, "", "missing"),
        ({"values": ["1"], "level": "optional"}, "", "ok"),
        ({"minimum": 100}, "100", "ok"),
        ({"minimum": 100}, "99", "differs"),
        ({"minimum": 100}, "many", "differs"),
        ({"pattern": "hsn.*", "example": "hsn0"}, "hsn0,hsn1", "ok"),
        ({"pattern": "hsn.*", "example": "hsn0"}, "eth0", "differs"),
        ({"values": ["a"], "harmful": ["b"]}, "b", "differs"),
        ({"harmful": ["1"], "level": "optional"}, "0", "ok"),
        ({"harmful": ["1"], "level": "optional"}, "1", "differs"),
    ],
)
def test_a_value_is_right_wrong_or_missing(row, value, state):
    assert variable(**row).state(value) == state


def test_the_line_to_set():
    assert variable(values=["1"]).line == "export X=1"
    assert variable(values=["AWS Libfabric"]).line == 'export X="AWS Libfabric"'
    assert variable(minimum=100).line == "export X=100"
    assert variable(pattern="hsn.*", example="hsn0").line == "export X=hsn0"
    assert variable(harmful=["1"]).line == "unset X"


def test_versions_from_first_to_fixed_have_the_defect_unless_it_is_avoided():
    given = {"package": "torch", "vendors": ["intel"], "defect": "d", "sources": ["s"]}
    row = Version.model_validate({**given, "first": "2.8", "fixed": "2.9", "unless": {"A": "1", "B": "2"}})
    found = {version: row.concerns(version, {}) for version in ("2.7.1", "2.8.0+xpu", "2.8.1", "2.9.0", "")}
    assert found == {"2.7.1": False, "2.8.0+xpu": True, "2.8.1": True, "2.9.0": False, "": False}
    assert row.concerns("2.8.0", {"A": "1"})
    assert not row.concerns("2.8.0", {"A": "1", "B": "2"})
    assert Version.model_validate(given).concerns("99.0", {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": {}}, "no such source: "),
        ({"fabrics": {}}, "no such fabric: slingshot"),
        ({"more": 1}, "Extra inputs are not permitted"),
    ],
)
def test_a_wrong_table_is_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        Needs.model_validate({**read_yaml(ROOT / TABLE), **change})


@pytest.mark.parametrize("row", [{}, {"pattern": "hsn.*"}, {"values": ["1"], "vendors": []}, {"values": [1]}])
def test_a_wrong_row_is_refused(row):
    with pytest.raises(ValidationError):
        variable(**row)


def test_a_network_is_that_of_the_machine_or_what_the_host_shows(tmp_path):
    assert NEEDS.fabric_of("polaris", tmp_path) == "slingshot"
    assert NEEDS.fabric_of("slurm", tmp_path) == ""
    (tmp_path / "sys/class/infiniband").mkdir(parents=True)
    assert NEEDS.fabric_of("slurm", tmp_path) == "infiniband"


def test_the_page_has_the_table():
    page = (ROOT / "docs/gpu.md").read_text()
    command = "python -c 'from megads.device.needs import *; print(table(read_needs(Path())))'"
    assert table(NEEDS) in page, f"put the output of {command} into docs/gpu.md"


def test_a_table_that_cannot_be_read_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"needs.yaml: No such file or directory; MEGADS_ROOT should be the checkout"):
        read_needs(tmp_path)
    (tmp_path / TABLE).parent.mkdir(parents=True)
    for text, message in (("a: [", "needs.yaml: "), ("a: 1", "needs.yaml: Field required")):
        (tmp_path / TABLE).write_text(text)
        read_needs.cache_clear()
        with pytest.raises(ConfigError, match=message):
            read_needs(tmp_path)


def test_reading_it_needs_no_torch():
    assert "torch" not in (ROOT / "megads/device/needs.py").read_text().split("from __future__")[1].split("class")[0]
