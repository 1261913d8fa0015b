"""What words behind Megatron-LM's options mean in the units of the settings."""

from __future__ import annotations


def minutes(word: str) -> str:
    """Return minutes as seconds."""
    return repr(60 * _number(word))


def exponent_of_two(word: str) -> str:
    """Return N of 2**N, which Megatron-LM writes out, as 4294967296."""
    number = _number(word)
    if number < 1 or number != int(number) or int(number) & (int(number) - 1):
        raise ValueError(f"{word!r} is not a power of two; use 4294967296 (2**32) or 65536 (2**16)")
    return str(int(number).bit_length() - 1)


def with_end_of_document(word: str) -> str:
    """Return the tokens of a NullTokenizer: its ids, and the end of documents behind them."""
    if not word.isascii() or not word.isdecimal():
        raise ValueError(f"{word!r} is not an int")
    return str(int(word) + 1)


def _number(word: str) -> float:
    try:
        number = float(word)
        int(number)  # neither NaN nor infinite
    except (ValueError, OverflowError):
        raise ValueError(f"{word!r} is not a number") from None
    return number
