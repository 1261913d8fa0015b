import pytest

from megads.text.plural import listed, noun_for, plural


@pytest.mark.parametrize(
    ("count", "noun", "spec", "text"),
    [
        (1, "rank", "", "1 rank"),
        (0, "rank", "", "0 ranks"),
        (2, "file", "", "2 files"),
        (12345, "document", ",", "12,345 documents"),
        (1, "corpus", "", "1 corpus"),
        (2, "corpus", "", "2 corpora"),
        (1, "pair of hosts", "", "1 pair of hosts"),
        (3, "pair of hosts", "", "3 pairs of hosts"),
    ],
)
def test_one_and_many(count, noun, spec, text):
    assert plural(count, noun, spec) == text
    assert noun_for(count, noun) == text.partition(" ")[2]


@pytest.mark.parametrize(("words", "text"), [(["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")])
def test_words_in_a_row(words, text):
    assert listed(words, "or") == text
