"""The versions of megads and of its formats, where they are declared and where they are used."""

from __future__ import annotations

import megads
from megads.checkpoint.format import manifest
from megads.data.formats import record, token_file
from megads.release.versions import FORMATS, VERSION, Format, summary


def test_there_is_one_version():
    assert megads.__version__ == VERSION


def test_every_format_reads_what_it_writes():
    for name, each in FORMATS.items():
        major, minor = each.version.split(".")
        assert each.major == int(major) == max(each.reads), name
        assert minor.isdigit()
        assert each.covers


def test_files_carry_the_numbers_of_the_table():
    assert (manifest.FORMAT, manifest.WITH_STATES) == (3, 4) == FORMATS["checkpoint"].reads
    assert {record.FORMAT, token_file.VERSION} == {FORMATS["token file"].major}


def test_what_else_is_read_is_shown():
    assert str(Format("4.1", "x", reads=(3, 4))) == "4.1 (reads 3)"
    assert str(Format("2.0", "x", reads=(2,))) == "2.0"
    assert summary().startswith("checkpoint 4.0 (reads 3), token file 1.0, ")
