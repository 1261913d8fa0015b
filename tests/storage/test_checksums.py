import pytest

from megads.storage.checksums import (
    NO_CRC,
    BlockChecksums,
    count_blocks,
    has_changed,
    is_sealed,
    parse_digits,
    seal,
    with_crc_line,
)


def test_checksums_do_not_depend_on_the_pieces():
    content = bytes(range(256)) * 20
    whole, parts = BlockChecksums(1000), BlockChecksums(1000)
    whole.add(content)
    for begin in range(0, len(content), 7):
        parts.add(content[begin : begin + 7])
    assert whole.digits() == parts.digits()
    assert len(parse_digits(whole.digits(), count_blocks(len(content), 1000))) == 6
    for wrong in (whole.digits()[:-1], whole.digits().upper(), 5, None, "g" * 48):
        with pytest.raises(ValueError, match=r".+"):
            parse_digits(wrong, 6)


def test_a_seal_breaks_with_any_character():
    text = seal(f'{{"crc32": "{NO_CRC}", "a": 1}}')
    crc = text[11:19]
    assert is_sealed(text.encode(), crc)
    assert not is_sealed(text.replace("1}", "2}").encode(), crc)
    assert not is_sealed(text.encode(), None)
    assert not is_sealed(text.encode(), crc[:-1])


def test_a_line_of_checksum_covers_what_follows():
    text = with_crc_line("# head\na: 1\nb: 2\n")
    assert not has_changed(text)
    assert has_changed(text.replace("b: 2", "b: 3"))
    assert not has_changed("# head\na: 1\n")  # has none
