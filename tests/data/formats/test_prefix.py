import pytest

from megads.data.formats.prefix import strip_suffix


@pytest.mark.parametrize(
    ("name", "prefix"),
    [("a/b.bin", "a/b"), ("a/b.idx", "a/b"), ("a.b", "a.b"), ("a.bin.idx", "a.bin"), ("a/.bin", "a/.bin"), ("", "")],
)
def test_one_suffix_is_removed(name, prefix):
    assert strip_suffix(name) == prefix
