"""What ends a text, and which part of it is settled while it grows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace

from megads.inference.request import Request
from megads.inference.sampling import Sampling

CONTEXT, EOS = 100, (0,)


class Bytes:
    """A tokenizer whose tokens are bytes; 0 is the end of a text."""

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf8", errors="replace")


def _fed(text: str | bytes, **sampling: object) -> tuple[Request, list[str]]:
    """Return the request after ``text``, token by token, and what was settled after each token."""
    request = Request([65], Sampling(**{"max_tokens": 50, **sampling}))
    settled = []
    for byte in text if isinstance(text, bytes) else text.encode():
        request.take(byte, Bytes(), EOS, CONTEXT)
        settled.append(request.settled_text)
        if request.finish_reason:
            break
    return request, settled


def _is_growing(settled: Sequence[str]) -> bool:
    return all(after.startswith(before) for before, after in itertools.pairwise(settled))


def test_the_end_of_text_is_not_part_of_it():
    request, _ = _fed(b"abc\0def")
    assert (request.text, request.finish_reason, request.stop_reason) == ("abc", "stop", None)
    assert request.output == [97, 98, 99, 0]


def test_ignore_eos_and_min_tokens():
    assert _fed(b"a\0b", ignore_eos=True, max_tokens=3)[0].finish_reason == "length"
    request, _ = _fed(b"\0\0\0\0", min_tokens=2)
    assert (len(request.output), request.finish_reason) == (3, "stop")


def test_a_stop_token_is_named():
    request, _ = _fed("ab;c", stop_token_ids=(ord(";"),))
    assert (request.text, request.finish_reason, request.stop_reason) == ("ab", "stop", ord(";"))


def test_a_stop_string_over_several_tokens():
    request, settled = _fed("one<en two<end> three", stop=("<end>",))
    assert (request.text, request.finish_reason, request.stop_reason) == ("one<en two", "stop", "<end>")
    assert _is_growing(settled)
    assert settled[4] == "one"  # "<e" may be the beginning of the stop string
    assert settled[-1] == "one<en two"


def test_the_first_of_several_stop_strings_and_include_stop():
    request, _ = _fed("abcdef", stop=("de", "cd", "zz"), include_stop=True)
    assert (request.text, request.stop_reason) == ("abcd", "cd")


def test_characters_of_several_tokens_are_settled_when_whole():
    request, settled = _fed("für 日本", max_tokens=len("für 日本".encode()))
    assert _is_growing(settled)
    assert "\ufffd" not in "".join(settled)
    assert (request.text, request.finish_reason) == ("für 日本", "length")


def test_half_a_character_at_the_end_is_shown():
    request, _ = _fed("日".encode()[:2], max_tokens=2)
    assert request.text == "\ufffd"
    assert request.finish_reason == "length"


def test_max_tokens_and_the_context_end_a_text():
    assert len(_fed("abcdef", max_tokens=3)[0].output) == 3
    request = Request([65] * (CONTEXT - 2), Sampling(max_tokens=50))
    for byte in b"abc"[:2]:
        request.take(byte, Bytes(), EOS, CONTEXT)
    assert (request.length, request.finish_reason) == (CONTEXT, "length")


def test_a_tokenizer_that_drops_the_space_of_the_first_token():
    words = {1: " a", 2: " b", 3: "c", 9: " so"}
    tokenizer = SimpleNamespace(decode=lambda ids: "".join(words[each] for each in ids).lstrip())
    request = Request([9], Sampling(max_tokens=3))
    for token in (1, 2, 3):
        request.take(token, tokenizer, EOS, CONTEXT)
    assert request.text == " a bc"


def test_a_prompt_that_ends_inside_a_character():
    request = Request([65, *"日".encode()[:1]], Sampling(max_tokens=3))
    for byte in [*"日".encode()[1:], 66]:
        request.take(byte, Bytes(), EOS, CONTEXT)
    assert request.text == "日B"


def test_a_stop_string_before_min_tokens_does_not_stop_later():
    request, settled = _fed("a.bc.d", min_tokens=3, stop=(".",))
    assert request.text == "a.bc"
    assert _is_growing(settled)


def test_a_replacement_character_in_the_prompt_is_not_repeated():
    request = Request(list("ab\ufffd".encode()), Sampling(max_tokens=3))
    for byte in b"cde":
        request.take(byte, Bytes(), EOS, CONTEXT)
    assert request.text == "cde"
