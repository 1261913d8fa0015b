from __future__ import annotations

import pytest

from megads.config.settings.data import parse_split
from megads.errors import ConfigError
from tests.data.factory import make_run


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("969,30,1", (969, 30, 1)),
        ("969, 30, 1", (969, 30, 1)),
        (" .9 .1 ", (0.9, 0.1, 0)),
        ("[1]", (1, 0, 0)),
        ("98/2", (98, 2, 0)),
        ("1e2,0,1", (100, 0, 1)),
    ],
)
def test_split_text(text, shares):
    assert parse_split(text) == shares


@pytest.mark.parametrize("text", ["", ",", "a,b", "1,2,3,4", "-1,2", "0,0,0", "1;2", "1e999", "1,,nan", "inf"])
def test_wrong_split_text(text):
    with pytest.raises(ConfigError, match="SPLIT="):
        parse_split(text)


def test_a_split_with_a_list_of_its_own_has_no_share():
    data = {"split": "90,7,3", "valid_file_list": "v"}
    assert make_run(data=data).data.shares() == (97, 0, 3)
    assert make_run(data={**data, "test_file_list": "t"}).data.shares() == (100, 0, 0)
    assert make_run(data={"split": "", "train_split": 8, "val_split": 2, "test_split": 1}).data.shares() == (8, 2, 1)
